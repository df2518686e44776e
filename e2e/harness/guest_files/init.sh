#!/bin/bash
# Process 1 of a guest: a tmpfs over the host's /, which stays as it is; the shared folders; network; the agent.
# Its settings are on the kernel's command line: G_SHARES (a:b), G_MODULES, G_ADDRESS, G_TMPFS, G_NAME, G_AGENT and, if
# something is to run from the start, G_RC.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
eval "$(tr ' ' '\n' </proc/cmdline | grep '^G_')"
insmod "$G_MODULES/kernel/fs/overlayfs/overlay.ko"
mount -t tmpfs -o "size=$G_TMPFS" tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mkdir -p /mnt/root/hostroot /mnt/root/lib/modules
mount --move /dev /mnt/root/dev
cd /mnt/root && pivot_root . hostroot && cd /
umount -l /hostroot/proc
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -o remount,ro /hostroot
for folder in /run /tmp /dev/shm; do
  mkdir -p "$folder"
  mount -t tmpfs tmpfs "$folder"
done
mkdir -p /run/lock /dev/pts
mount -t devpts devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
for pair in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${pair%%:*}" "/dev/${pair#*:}"; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# What the guest has looked up through the overlay stays as it was then: what changes is shared, mounted by itself.
for folder in ${G_SHARES//:/ }; do
  mkdir -p "$folder"
  mount -t hostfs -o "$folder" none "$folder"
done
mount --make-rshared /
ln -sfn "$G_MODULES" "/lib/modules/$(uname -r)"
modprobe -a rbd loop
hostname "$G_NAME"
ip link set lo up
if ! { ip addr add "$G_ADDRESS" dev vec0 && ip link set vec0 up; }; then
  echo GUEST-FAILED
  echo o >/proc/sysrq-trigger
fi
[ -z "${G_RC:-}" ] || setsid "$G_RC" >>"$G_RC.log" 2>&1 </dev/null &
echo GUEST-UP
exec /usr/bin/python3 -S "$G_AGENT" "${G_ADDRESS%/*}"
