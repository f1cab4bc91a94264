package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// selects is one selector, and what the plan says of what it finds.
type selects struct {
	cluster.DiskSelector
	says    string // "": nothing
	refused bool
}

func selected(kind cluster.SelectorKind, id, document, says string, refused bool, found ...string) selects {
	s := cluster.DiskSelector{ID: id, Document: document, Match: "disk.size > 1u", Kind: kind, Found: found}
	if slices.Contains(found, "sda") {
		s.System = "sda"
	}
	return selects{s, says, refused}
}

func (s selects) unknown(why string) selects { s.Unknown, s.Found = why, nil; return s }
func (s selects) broken(err string) selects  { s.Broken, s.Found = err, nil; return s }
func (s selects) match(expr string) selects  { s.Match = expr; return s }

// selectorsOfEachKind are of volumes that VM 101 does not have. Its system disk is sda.
func selectorsOfEachKind() map[string]selects {
	const (
		nothing, system = "no disk of VM 101 matches the selector of ", " matches the system disk (sda): what is on it goes with the system disk"
		one, whole      = "the node would not be whole", "refuses that for a whole disk"
	)
	out := map[string]selects{
		"whole disk":                {DiskSelector: selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "", false, "sdb").DiskSelector},
		"whole disk, nothing":       selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", nothing+"UserVolumeConfig w: ", true),
		"whole disk, several":       selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "2 disks match the selector of UserVolumeConfig w (sdb, sdc): Talos "+whole, true, "sdb", "sdc"),
		"whole disk, the system":    selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "the system disk (sda): which has partitions of Talos", true, "sda"),
		"whole disk, an error":      selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "Talos can't evaluate the selector of UserVolumeConfig w: no such attribute(s): system_disk", true).broken("no such attribute(s): system_disk"),
		"device":                    selected(cluster.ForDevice, "/dev/sdb-1", "machine.disks /dev/sdb", "", false, "sdb"),
		"device, nothing":           selected(cluster.ForDevice, "/dev/sdx-1", "machine.disks /dev/sdx", "no disk of VM 101 matches machine.disks /dev/sdx: ", true),
		"device, the system":        selected(cluster.ForDevice, "/dev/sda-1", "machine.disks /dev/sda", "machine.disks /dev/sda matches the system disk (sda): which has", true, "sda"),
		"existing":                  selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "", false, "sdb1"),
		"existing, nothing":         selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "no volume of VM 101 matches the selector of ExistingVolumeConfig x: pods would write to EPHEMERAL", true),
		"existing, several":         selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "2 volumes match the selector of ExistingVolumeConfig x (sdb1, sdc1): Talos takes the first", false, "sdb1", "sdc1"),
		"existing, the system":      selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", system, false, "sda"),
		"existing, an error":        selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "Talos can't evaluate", true).broken("no such key"),
		"members":                   selected(cluster.ForMembers, "", "LVMVolumeGroupConfig vg", "", false, "sdb", "sdc"),
		"members, nothing":          selected(cluster.ForMembers, "", "LVMVolumeGroupConfig vg", "no volume of VM 101 matches the selector of LVMVolumeGroupConfig vg: ", false),
		"install":                   selected(cluster.ForInstall, "", "UnattendedInstallConfig", "", false, "sda"),
		"install, nothing":          selected(cluster.ForInstall, "", "UnattendedInstallConfig", nothing+"UnattendedInstallConfig: recast names the disk", false),
		"install, several":          selected(cluster.ForInstall, "", "machine.install.diskSelector", "2 disks match the selector of machine.install.diskSelector (sda, sdb): recast", false, "sda", "sdb"),
		"EPHEMERAL where it is":     selected(cluster.ForPartition, "CRI", "VolumeConfig CRI", "", false, "sda").match("system_disk"),
		"user volume, on purpose":   selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", system, false, "sda").match("system_disk"),
		"several, with the system":  selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "(sda, sdb): Talos takes the first one with room; the selector of UserVolumeConfig x"+system, false, "sda", "sdb"),
		"unknown, though it counts": selected(cluster.ForWholeDisk, "u-x", "UserVolumeConfig x", "what UserVolumeConfig x selects can't be evaluated yet: later", false).unknown("later"),
	}
	for id, document := range map[string]string{"u-p": "UserVolumeConfig p", "r-p": "RawVolumeConfig p", "s-p": "SwapVolumeConfig p", "ETCD": "VolumeConfig ETCD", "KUBELET": "VolumeConfig KUBELET"} {
		out[document] = selected(cluster.ForPartition, id, document, "", false, "sdb")
		out[document+", nothing"] = selected(cluster.ForPartition, id, document, nothing+document+": Talos could not make the volume, and "+one, true)
		out[document+", several"] = selected(cluster.ForPartition, id, document, "2 disks match the selector of "+document+" (sdb, sdc): Talos takes the first one with room", false, "sdb", "sdc")
		out[document+", the system"] = selected(cluster.ForPartition, id, document, "the selector of "+document+system, false, "sda")
		out[document+", unknown"] = selected(cluster.ForPartition, id, document, "what "+document+" selects can't be evaluated yet: which", false).unknown("which one is the system disk is not known")
		out[document+", an error"] = selected(cluster.ForPartition, id, document, "Talos can't evaluate the selector of "+document+": division by zero", true).broken("division by zero")
	}
	return out
}

func withSelector(s cluster.Strategy, of cluster.DiskSelector) NodePlan {
	m := cluster.Machine{SystemDisk: "sda", Volumes: []cluster.Volume{{Disk: "sda", Label: "EPHEMERAL"}}}
	n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: s, WithConfig: true, Found: observe.Found{Machine: &m, VM: &cluster.VM{ID: 101}}}
	n.Found.File = &cluster.FoundFile{Selectors: []cluster.DiskSelector{of}}
	return n
}

// TestPlanOfSelectors: what a selector of a file that goes out finds is said, and refused where the node would not be
// whole; what can't be evaluated is no match, and no refusal.
func TestPlanOfSelectors(t *testing.T) {
	t.Parallel()
	for name, tc := range selectorsOfEachKind() {
		for _, s := range handing {
			n := withSelector(s, tc.DiskSelector)
			n.planSelectors()
			refused, notes := strings.Join(n.Refused, "\n"), strings.Join(n.Notes, "\n")
			said := notes
			if tc.refused {
				said, notes = refused, notes+"\n"
			}
			if (refused != "") != tc.refused || (said == "") != (tc.says == "") || !strings.Contains(said, tc.says) || strings.TrimSpace(notes) != "" && tc.refused {
				t.Errorf("%s, %s: refused %q, notes %q, want %q", name, s, refused, notes, tc.says)
			}
		}
		n := withSelector(cluster.InPlace, tc.DiskSelector)
		n.WithConfig = false
		if n.planSelectors(); len(n.Refused)+len(n.Notes) > 0 {
			t.Errorf("%s: a file that does not go out: %q %q", name, n.Refused, n.Notes)
		}
	}
}

// TestSelectorsOfWhatIsThere: a partition that is there and stays is found by its label, whatever its selector matches;
// one that leaves is made anew; a volume that Talos can't make now either is only noted.
func TestSelectorsOfWhatIsThere(t *testing.T) {
	t.Parallel()
	none := selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "", false).DiskSelector
	for name, tc := range map[string]struct {
		there   cluster.VolumeStatus
		label   string // disk with a partition of that label
		kind    cluster.SelectorKind
		refused []cluster.Strategy
		noted   []cluster.Strategy
	}{
		"on a disk that stays":      {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Location: "/dev/sdb1", Disk: "sdb"}},
		"only its label":            {label: "sdb"},
		"on the system disk":        {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Location: "/dev/sda5", Disk: "sda"}, refused: leaving},
		"its label on the system's": {label: "sda", refused: leaving},
		"a whole disk is looked for at each boot": {
			there: cluster.VolumeStatus{ID: "u-x", Type: "disk", Location: "/dev/sdb", Disk: "sdb"}, kind: cluster.ForWholeDisk, refused: handing,
		},
		"nowhere":       {refused: handing},
		"stuck already": {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Phase: "failed", Error: "no disks matched"}, noted: handing},
	} {
		for _, s := range handing {
			of := none
			if tc.kind != "" {
				of.Kind = tc.kind
			}
			n := withSelector(s, of)
			n.Found.Volumes.Runs = []cluster.ConfigVolume{{ID: "u-x", Place: of.Match}}
			if tc.there.ID != "" {
				n.Found.Machine.VolumeStatuses = []cluster.VolumeStatus{tc.there}
			}
			if tc.label != "" {
				n.Found.Machine.Volumes = append(n.Found.Machine.Volumes, cluster.Volume{Disk: tc.label, Label: "u-x"})
			}
			n.planSelectors()
			if (len(n.Refused) > 0) != slices.Contains(tc.refused, s) || (len(n.Notes) > 0) != slices.Contains(tc.noted, s) {
				t.Errorf("%s, %s: refused %q, notes %q", name, s, n.Refused, n.Notes)
			}
		}
	}
	n := withSelector(cluster.ApplyConfig, none)
	n.Found.Machine.VolumeStatuses = []cluster.VolumeStatus{{ID: "u-x", Type: "partition", Phase: "failed"}}
	n.Found.Volumes.Runs = []cluster.ConfigVolume{{ID: "u-x", Place: "another"}}
	if n.planSelectors(); len(n.Refused) == 0 {
		t.Errorf("stuck, with another selector: %q", n.Notes)
	}
}

// TestSelectorsOfAResetMachine: its partitions are there, and its other selectors count.
func TestSelectorsOfAResetMachine(t *testing.T) {
	t.Parallel()
	n := withSelector(cluster.InstallReset, selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "", false).DiskSelector)
	n.Found.Machine, n.Found.Blank = nil, &cluster.BlankMachine{Machine: cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: "u-x"}}}}
	if n.planSelectors(); len(n.Refused) > 0 {
		t.Errorf("refused %q", n.Refused)
	}
	n.Found.Blank.Volumes = nil
	if n.planSelectors(); len(n.Refused) != 1 {
		t.Errorf("refused %q", n.Refused)
	}
}
