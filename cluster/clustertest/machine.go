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

// Parts is what a machine tells who asks for those parts of it; see cluster.PartReader.
func Parts(m cluster.Machine, parts cluster.MachineParts) cluster.Machine {
	if parts&cluster.IfReady != 0 && (m.Stage != "running" || !m.Ready) {
		parts &= cluster.UUIDPart | cluster.StandingPart
	}
	told := cluster.Machine{}
	for part, tell := range map[cluster.MachineParts]func(){
		cluster.UUIDPart:     func() { told.UUID = m.UUID },
		cluster.StandingPart: func() { told.Stage, told.Ready, told.Unmet = m.Stage, m.Ready, m.Unmet },
		cluster.VersionPart:  func() { told.TalosVersion, told.Arch, told.Platform = m.TalosVersion, m.Arch, m.Platform },
		cluster.NodenamePart: func() { told.Nodename = m.Nodename },
		cluster.HostnamePart: func() { told.Hostname = m.Hostname },
		cluster.TypePart:     func() { told.ControlPlane, told.TypeInit = m.ControlPlane, m.TypeInit },
		cluster.BootIDPart:   func() { told.BootID = m.BootID },
		cluster.SystemPart: func() {
			told.SecureBoot, told.BootEntry, told.NextBoot, told.FromISO = m.SecureBoot, m.BootEntry, m.NextBoot, m.FromISO
			told.Schematic, told.Extensions, told.Cmdline, told.ConfigArgs = m.Schematic, m.Extensions, m.Cmdline, m.ConfigArgs
		},
		cluster.DisksPart | cluster.VolumesPart: func() { told.Disks, told.SystemDisk, told.VolumeStatuses = m.Disks, m.SystemDisk, m.VolumeStatuses },
		cluster.VolumesPart:                     func() { told.Volumes, told.PoolMembers, told.FromImage = m.Volumes, m.PoolMembers, m.FromImage },
		cluster.ConfigPart | cluster.VisibleConfigPart: func() {
			told.InstallImage, told.Configs, told.Encryption = m.InstallImage, m.Configs, m.Encryption
		},
		cluster.AddressesPart: func() { told.Addresses = m.Addresses },
	} {
		if parts&part != 0 {
			tell()
		}
	}
	return told
}
