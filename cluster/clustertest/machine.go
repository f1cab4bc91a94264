package clustertest

import (
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// The hashes of the old lock and of the present one.
const (
	OldHash = "sha256-old"
	NewHash = "sha256-new"
)

// Volid is the name of the nth volume of a VM.
func Volid(id cluster.VMID, n int) string {
	return fmt.Sprintf("fast:vm-%d-disk-%d", id, n)
}

// WantedBuild is what every node of World should run.
func WantedBuild() cluster.Build {
	return cluster.Build{
		ID: "b1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SchematicID: "id-new", LockHash: NewHash,
		Extensions: []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:bbbbbbbbbbbbbbbb"}},
	}
}

// InSync is a machine that runs WantedBuild.
func InSync() cluster.Machine {
	return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u1"}, RunningSystem: cluster.RunningSystem{
		TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), Schematic: cluster.SchematicEntry{ID: "id-new", YAML: "customization:\n  extraKernelArgs:\n    - recast.lock=" + NewHash + "\n"},
		Extensions: []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}},
	}}
}

// Past knows the extensions of OldHash.
func Past(hash string) (cluster.LockedContent, bool) {
	if hash == OldHash {
		return cluster.LockedContent{Extensions: []cluster.LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:aaaaaaaaaaaaaaaa"}}}, true
	}
	return cluster.LockedContent{}, false
}

// Message is the text of err, or "".
func Message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
