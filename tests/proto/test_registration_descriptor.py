"""`proto/pluginregistration.proto` says on the wire what the kubelet of the tests' Kubernetes says."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from proto import pluginregistration_pb2
from tests.proto.go_descriptors import descriptor_of_go_source, differences, facts, go_module_folder, required

MODULE = "k8s.io/kubelet"


def test_the_registration_equals_the_one_that_kubelet_has(tmp_path: Path) -> None:
    folder = go_module_folder(MODULE, required(MODULE), tmp_path)
    source = (folder / "pkg/apis/pluginregistration/v1/api.pb.go").read_text()
    published = descriptor_of_go_source(source)
    ours = FileDescriptorProto.FromString(pluginregistration_pb2.DESCRIPTOR.serialized_pb)

    assert [service.name for service in published.service] == ["Registration"]
    assert differences(facts(ours), facts(published)) == []
