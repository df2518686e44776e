#!/bin/bash
# In a guest, at each start: makes a Kubernetes node of it.  Its settings are in the file `settings` beside it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings" # NODE ADDRESS PATH
export PATH
mkdir -p /var/lib/node /var/lib/kubelet
# What has to survive a power cut is on the disk.
mount /dev/ubda /var/lib/node && mount --bind /var/lib/node/kubelet /var/lib/kubelet || exit 1
# cAdvisor looks for the processor's speed, which this kernel does not tell.
sed 's/^bogomips.*/cpu MHz\t\t: 2000.000\n&/' /proc/cpuinfo >/run/cpuinfo && mount --bind /run/cpuinfo /proc/cpuinfo
echo "$NODE" | md5sum | cut -c1-32 >/run/machine-id && mount --bind /run/machine-id /etc/machine-id
keep() {
  local name=$1
  shift
  while :; do
    "$@" >>"$here/$name.log" 2>&1 </dev/null
    echo "ended: $?" >>"$here/$name.log"
    sleep 1
  done &
}
keep containerd containerd -c "$here/containerd.toml"
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
keep kubelet kubelet --config "$here/kubelet.json" --kubeconfig "$here/kubelet.conf" \
  --hostname-override "$NODE" --node-ip "$ADDRESS" --root-dir /var/lib/kubelet
wait
