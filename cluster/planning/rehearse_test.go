package planning

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestTrials: nodes that boot the same image in the same way have one trial, and all others one each.
func TestTrials(t *testing.T) {
	t.Parallel()
	const ovmf = "bios=ovmf scsihw=virtio-scsi-single efidisk0=fast:vm-1-disk-0,efitype=4m"
	node := func(name, host, config string, change func(*NodePlan)) NodePlan {
		vm := cluster.VM{Host: host, Config: map[string]string{}}
		for setting := range strings.FieldsSeq(config) {
			key, value, _ := strings.Cut(setting, "=")
			vm.Config[key] = value
		}
		n := NodePlan{Node: name, Host: host, Strategy: cluster.Recreate, Addr: netip.MustParseAddr("192.0.2.7"), Found: observe.Found{VM: &vm}}
		n.Wanted.Schematic, n.Wanted.Build = "storage", cluster.Build{Platform: "nocloud", ISOName: "new.iso", DiskName: "new.qcow2"}
		if change != nil {
			change(&n)
		}
		return n
	}
	onDisk := func(key string) func(*NodePlan) {
		return func(n *NodePlan) { n.Prepared, n.System = "new.qcow2", &DiskPlan{Key: key} }
	}
	h := Rehearsal{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.250/24")}}
	for name, c := range map[string]struct {
		nodes []NodePlan
		want  string
	}{
		"by ISO": {[]NodePlan{node("a", "pve1", ovmf, nil), node("b", "pve1", ovmf, nil)}, "pve1 ovmf-storage new.iso [a b]"},
		"by disk, in one place or another": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("scsi1"))}, "pve1 ovmf-disk-storage a disk made from new.qcow2 [a b] scsi (virtio-scsi-single)",
		},
		"by disk on two hosts": {
			[]NodePlan{node("a", "pve2", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("scsi0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [b] scsi (virtio-scsi-single)\npve2 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)",
		},
		"by both": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, nil), node("c", "pve1", "scsihw=lsi", nil)},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-storage new.iso [b]\npve1 seabios-storage new.iso [c]",
		},
		"other buses": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("virtio0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-disk-storage-2 a disk made from new.qcow2 [b] virtio",
		},
		"another controller": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", strings.ReplaceAll(ovmf, "virtio-scsi-single", "pvscsi"), onDisk("scsi0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-disk-storage-2 a disk made from new.qcow2 [b] scsi (pvscsi)",
		},
		"another controller under an ISO": {
			[]NodePlan{node("a", "pve1", ovmf, nil), node("b", "pve1", strings.ReplaceAll(ovmf, "virtio-scsi-single", "pvscsi"), nil)}, "pve1 ovmf-storage new.iso [a b]",
		},
		"its system disk is not proven": {[]NodePlan{node("a", "pve1", ovmf, func(n *NodePlan) { n.Prepared = "new.qcow2" })}, ""},
		"already out, or not taken out": {
			[]NodePlan{node("a", "pve1", ovmf, func(n *NodePlan) { n.Resume = true }), node("b", "pve1", ovmf, func(n *NodePlan) { n.Strategy = cluster.InPlace })}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, trial := range (Plan{Nodes: c.nodes}).TrialsOf(h) {
				_, drive, _ := strings.Cut(trial.Firmware, ", disk on ")
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %v %s", trial.Host, trial.ID, trial.Medium, trial.Nodes, drive)))
			}
			if diff := cmp.Diff(c.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("trials (-want +got):\n%s", diff)
			}
		})
	}
}

// TestScratchSerial: QEMU passes on 20 characters of a serial.
func TestScratchSerial(t *testing.T) {
	t.Parallel()
	if got := ScratchSerial("8d3f0f6e-0f4b-4c57-9d4c-6a1b2c3d4e5f"); got != "recast-6a1b2c3d4e5f" || len(got) > 20 {
		t.Error(got)
	}
}
