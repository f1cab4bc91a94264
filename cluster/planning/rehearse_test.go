package planning

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/sim/must"
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
	type row struct {
		nodes []NodePlan
		want  string
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, c row) {
		var got []string
		for _, trial := range (Plan{Nodes: c.nodes}).TrialsOf(h) {
			_, drive, _ := strings.Cut(trial.Firmware, ", disk on ")
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %v %s", trial.Host, trial.ID, trial.Medium, trial.Nodes, drive)))
		}
		must.Equal(t, "trials", c.want, strings.Join(got, "\n"))
	})
}

// TestScratchSerial: QEMU passes on 20 characters of a serial.
func TestScratchSerial(t *testing.T) {
	t.Parallel()
	if got := ScratchSerial("8d3f0f6e-0f4b-4c57-9d4c-6a1b2c3d4e5f"); got != "recast-6a1b2c3d4e5f" || len(got) > 20 {
		t.Error(got)
	}
}

func TestOneNodeOfEachImageBootsThroughTheFirmware(t *testing.T) {
	t.Parallel()
	node := staleOf
	cp, worker := cluster.ControlPlane, cluster.Worker
	resumed, own := node("wk1", worker, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace)
	resumed.Resume, resumed.Run, own.OwnPod = true, "r1", true
	tidies := node("wk1", worker, "a", cluster.InPlace, "install-image", "config", "vm")
	type row struct {
		policy Policy
		nodes  []NodePlan
		want   string // in the order in which they go: phase/node, and * for the firmware
	}
	must.Each(t, map[string]row{
		"canary": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk1* control-planes/cp1 workers/wk2",
		},
		"without another canary": {
			Policy{Reboot: cluster.FirmwareOnce},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk1* control-planes/cp1 workers/wk2",
		},
		"the named one": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true, CanaryNode: "wk2"},
			[]NodePlan{node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1",
		},
		"two images": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("cp2", cp, "a", cluster.InPlace), node("wk1", worker, "b", cluster.InPlace), node("wk2", worker, "b", cluster.InPlace)},
			"canary/cp1* canary/wk1* control-planes/cp2 workers/wk2",
		},
		"one node of an image": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "b", cluster.Recreate), node("wk2", worker, "b", cluster.Recreate)},
			"canary/wk1 control-planes/cp1* workers/wk2",
		},
		"not where recast runs": {
			Policy{Reboot: cluster.FirmwareOnce},
			[]NodePlan{own, node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1",
		},
		"what an earlier run left does not count": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{resumed, node("wk2", worker, "a", cluster.InPlace), node("wk3", worker, "a", cluster.InPlace)},
			"unfinished/wk1* canary/wk2* workers/wk3",
		},
		"not one that runs it and only tidies, whatever else differs": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{tidies, node("wk2", worker, "a", cluster.InPlace), node("wk3", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1 workers/wk3",
		},
		"always": {
			Policy{Reboot: cluster.ByFirmware},
			[]NodePlan{node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"workers/wk1* workers/wk2*",
		},
	}, func(t *testing.T, tc row) {
		p := Plan{Nodes: tc.nodes, MaxUnavailable: 2}
		p.Order(tc.policy)
		var got []string
		for _, n := range p.Nodes {
			what := string(n.Phase) + "/" + n.Node
			if n.Reboot == cluster.ByFirmware {
				what += "*"
			}
			got = append(got, what)
			must.Equal(t, n.Node+": the plan says so", n.Reboot == cluster.ByFirmware, strings.Contains(strings.Join(n.Notes, "; "), "through the firmware"))
		}
		must.Equal(t, "got", tc.want, strings.Join(got, " "))
	})
}

// staleOf is a node that a strategy brings to a build.
func staleOf(name, role, build string, s cluster.Strategy, codes ...string) NodePlan {
	reasons := []cluster.Reason{{Text: "stale"}}
	if len(codes) > 0 {
		reasons = nil
	}
	for _, code := range codes {
		reasons = append(reasons, cluster.Reason{Code: code})
	}
	return NodePlan{
		Node: name, Role: role, Strategy: s, Host: "pve1", Found: observe.Found{Machine: &cluster.Machine{}},
		Wanted: cluster.Wanted{Name: name, Build: cluster.Build{ID: build}}, Drift: observe.Drift{Reasons: reasons},
	}
}

// TestScratchVMs: a copy of a scratch VM is not one, whichever way its mark names the VM.
func TestScratchVMs(t *testing.T) {
	t.Parallel()
	byUUID, byNumber := ScratchMark("r1", "c1", "u"), ScratchMarkOf("r1", "c1", "disks", 9800)
	type row struct {
		id                cluster.VMID
		name, uuid, notes string
		want              string // its UUID; "": it is none
	}
	must.Each(t, map[string]row{
		"by UUID":                     {9800, "recast-rehearse-9800", "u", "text\n\n" + byUUID + "\n", "u"},
		"a copy":                      {9801, "recast-rehearse-9801", "v", byUUID, ""},
		"by number":                   {9800, "recast-rehearse-9800", "made up", "text\n\n" + byNumber + "\n", "disks"},
		"a copy of that":              {9801, "recast-rehearse-9801", "v", byNumber, ""},
		"a copy with its name":        {9801, "recast-rehearse-9800", "v", byNumber, ""},
		"of another cluster":          {9800, "recast-rehearse-9800", "u", ScratchMark("r1", "c2", "u"), ""},
		"a node's, with a run's mark": {9800, "recast-rehearse-9800", "u", cluster.RunMark + "r1 build=b", ""},
		"renamed":                     {9800, "web", "u", byUUID, ""},
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: c.id, Name: c.name, Config: map[string]string{"smbios1": "uuid=" + c.uuid, "description": c.notes}}
		got := ""
		for _, s := range ScratchVMs([]cluster.VM{vm}, "c1") {
			got = s.UUID
		}
		must.Equal(t, "UUID", c.want, got)
	})
}
