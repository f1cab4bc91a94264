package planning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/sim/must"
)

// luks is an encryption with a key in each slot; "" leaves a slot empty.
func luks(keys ...string) cluster.VolumeEncryption {
	e := cluster.VolumeEncryption{Format: "luks2", Keys: map[int]string{}}
	for slot, key := range keys {
		if key != "" {
			e.Keys[slot] = key
		}
	}
	return e
}

// aVolume is one of a running machine, and how the configuration that goes out differs.
type aVolume struct {
	cluster.VolumeStatus
	runs   cluster.ConfigVolume
	change func(*cluster.ConfigVolume) // nil: it is dropped
}

func (v aVolume) gets() (volumes []cluster.ConfigVolume) {
	if v.change == nil {
		return []cluster.ConfigVolume{{ID: "u-other", Document: "UserVolumeConfig other"}}
	}
	v.change(&v.runs)
	return []cluster.ConfigVolume{v.runs}
}

func ready(id, document string, kind cluster.VolumeType, disk string, change func(*cluster.ConfigVolume)) aVolume {
	return aVolume{
		cluster.VolumeStatus{ID: id, Type: kind, Phase: "ready", Location: "/dev/" + disk + "1", Disk: disk},
		cluster.ConfigVolume{ID: id, Document: document, Type: kind, Place: "one"},
		change,
	}
}

func onEphemeral(id, document string, change func(*cluster.ConfigVolume)) aVolume {
	v := ready(id, document, cluster.DirectoryVolume, "", change)
	v.Location = ""
	return v
}

var (
	moved     = func(v *cluster.ConfigVolume) { v.Place = "another" }
	promoted  = func(v *cluster.ConfigVolume) { v.Type = cluster.PartitionVolume }
	demoted   = func(v *cluster.ConfigVolume) { v.Type = cluster.DirectoryVolume }
	encrypted = func(e cluster.VolumeEncryption) func(*cluster.ConfigVolume) {
		return func(v *cluster.ConfigVolume) { v.Encryption = e }
	}
	unchanged = func(*cluster.ConfigVolume) {}
)

func (v aVolume) formatted(as string) aVolume { v.runs.Filesystem = as; return v }

func (v aVolume) foundBy() aVolume { v.runs.Found = true; return v }

func (v aVolume) locked(slot *int, e cluster.VolumeEncryption) aVolume {
	v.Slot, v.runs.Encryption = slot, e
	return v
}

func (v aVolume) nowhere() aVolume { v.Location = ""; return v }

func (v aVolume) phase(phase string) aVolume { v.Phase = phase; return v }

// The strategies that hand a configuration out, with those that take the system disk away first.
var (
	leaving = []cluster.Strategy{cluster.Recreate, cluster.Reimage}
	staying = []cluster.Strategy{cluster.InPlace, cluster.ApplyConfig}
	handing = slices.Concat(leaving, staying)
)

// changedVolumes are volumes of sda, the system disk with EPHEMERAL, and sdb, and with which strategies their change is
// refused.
var changedVolumes = map[string]struct {
	volume  aVolume
	refused []cluster.Strategy
	says    string
	final   bool // nothing lifts it
}{
	"user volume":                 {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", nil), refused: handing, says: "lacks UserVolumeConfig data, whose volume is on the disk sdb: put that document back, or name u-data in nodes[].acceptLoss"},
	"raw volume":                  {volume: ready("r-data", "RawVolumeConfig data", "partition", "sdb", nil), refused: handing, says: "lacks RawVolumeConfig data, whose"},
	"swap":                        {volume: ready("s-data", "SwapVolumeConfig data", "partition", "sdb", nil), refused: handing, says: "lacks SwapVolumeConfig data, whose"},
	"existing volume":             {volume: ready("e-data", "ExistingVolumeConfig data", "partition", "sdb", nil), refused: handing, says: "lacks ExistingVolumeConfig data, whose volume is on the disk sdb"},
	"a whole disk":                {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", nil), refused: handing, says: "lacks UserVolumeConfig data, whose volume is on the disk sdb"},
	"a directory":                 {volume: onEphemeral("u-data", "UserVolumeConfig data", nil), refused: staying, says: "lacks UserVolumeConfig data, whose volume is a directory on EPHEMERAL"},
	"of the host":                 {volume: ready("x-data", "ExternalVolumeConfig data", "external", "", nil), refused: handing, says: "lacks ExternalVolumeConfig data, whose volume is /dev/1 of the VM's host"},
	"machine.disks":               {volume: ready("/dev/sdb-1", "machine.disks /dev/sdb", "partition", "sdb", nil), refused: handing, says: "lacks machine.disks /dev/sdb, whose volume is on the disk sdb"},
	"mounted elsewhere":           {volume: ready("/dev/sdb-1", "machine.disks /dev/sdb", "partition", "sdb", func(v *cluster.ConfigVolume) { v.Mount = "/var/mnt/x" }), refused: handing, says: "has another place for machine.disks /dev/sdb"},
	"on the system disk":          {volume: ready("u-data", "UserVolumeConfig data", "partition", "sda", nil), refused: staying, says: "lacks UserVolumeConfig data, whose volume is on the disk sda"},
	"never made":                  {volume: ready("u-data", "UserVolumeConfig data", "partition", "", nil).nowhere().phase("waiting")},
	"failed":                      {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", nil).phase("failed"), refused: handing, says: "lacks UserVolumeConfig data, whose volume is on the disk sdb"},
	"failed, of the system":       {volume: ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", demoted).phase("failed"), refused: handing, says: "lacks VolumeConfig ETCD, or its provisioning"},
	"failed, with another key":    {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("a"))).phase("failed")},
	"failed, in another place":    {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", moved).foundBy().phase("failed")},
	"unchanged":                   {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", unchanged).foundBy()},
	"another disk for a label":    {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", moved), refused: staying, says: "has another place for UserVolumeConfig data"},
	"another whole disk":          {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", moved).foundBy(), refused: handing, says: "has another place for UserVolumeConfig data"},
	"another existing partition":  {volume: ready("e-data", "ExistingVolumeConfig data", "partition", "sdb", moved).foundBy(), refused: handing, says: "has another place for ExistingVolumeConfig data"},
	"another filesystem":          {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", func(v *cluster.ConfigVolume) { v.Filesystem = "ext4" }).formatted("xfs"), refused: handing, final: true, says: "has another filesystem (ext4) for UserVolumeConfig data, whose volume is on the disk sdb, with xfs"},
	"another type":                {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", demoted), refused: handing, says: "has another type (directory) for UserVolumeConfig data, whose volume is on the disk sdb, as a disk"},
	"another place for EPHEMERAL": {volume: ready("EPHEMERAL", "VolumeConfig EPHEMERAL", "partition", "sda", moved), refused: staying, says: "has another place for VolumeConfig EPHEMERAL"},
	"ETCD":                        {volume: ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", demoted), refused: handing, says: "lacks VolumeConfig ETCD, or its provisioning, whose volume is on the disk sdb: Talos would use an empty directory on EPHEMERAL instead"},
	"CRI":                         {volume: ready("CRI", "VolumeConfig CRI", "partition", "sdb", demoted), refused: handing, says: "lacks VolumeConfig CRI, or its provisioning"},
	"KUBELET on the system disk":  {volume: ready("KUBELET", "VolumeConfig KUBELET", "partition", "sda", demoted), refused: staying, says: "lacks VolumeConfig KUBELET, or its provisioning"},
	"LOG is to be a partition":    {volume: onEphemeral("LOG", "VolumeConfig LOG", promoted), refused: staying, says: "makes VolumeConfig LOG a partition, whose volume is a directory on EPHEMERAL"},
	"ETCD in another place":       {volume: ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", moved), refused: staying, says: "has another place for VolumeConfig ETCD"},
	"plain to LUKS":               {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("a"))), refused: handing, final: true, says: "has another encryption for UserVolumeConfig data, whose volume is on the disk sdb"},
	"LUKS to plain":               {volume: ready("r-data", "RawVolumeConfig data", "partition", "sdb", encrypted(cluster.VolumeEncryption{})).locked(new(0), luks("a")), refused: handing, final: true, says: "has another encryption for RawVolumeConfig data"},
	"another key":                 {volume: ready("u-data", "UserVolumeConfig data", "disk", "sdb", encrypted(luks("b"))).locked(new(0), luks("a")), refused: handing, final: true, says: "has another encryption for UserVolumeConfig data"},
	"another key, the same slot":  {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("b", "a"))).locked(nil, luks("a")), refused: handing, final: true, says: "has another encryption for UserVolumeConfig data"},
	"one more key":                {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("a", "b"))).locked(nil, luks("a"))},
	"the other key goes":          {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("", "b"))).locked(new(1), luks("a", "b"))},
	"the key that opened it goes": {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("", "b"))).locked(new(0), luks("a", "b")), refused: handing, final: true, says: "has another encryption"},
	"one of two goes":             {volume: ready("u-data", "UserVolumeConfig data", "partition", "sdb", encrypted(luks("", "b"))).locked(nil, luks("a", "b")), refused: handing, final: true, says: "has another encryption"},
	"STATE":                       {volume: ready("STATE", "VolumeConfig STATE", "partition", "sda", encrypted(luks("a"))), refused: staying, final: true, says: "has another encryption for VolumeConfig STATE"},
	"EPHEMERAL on another disk":   {volume: ready("EPHEMERAL", "VolumeConfig EPHEMERAL", "partition", "sdb", encrypted(luks("a"))), refused: handing, final: true, says: "has another encryption for VolumeConfig EPHEMERAL"},
	"CRI, encrypted":              {volume: ready("CRI", "VolumeConfig CRI", "partition", "sdb", encrypted(luks("a"))), refused: handing, final: true, says: "has another encryption for VolumeConfig CRI"},
}

// TestAConfigurationThatChangesAVolume is refused for a volume that stays, whichever strategy hands the configuration
// out, and whether it is the node's file or what the node keeps; acceptLoss lifts that by the volume's ID.
func TestAConfigurationThatChangesAVolume(t *testing.T) {
	t.Parallel()
	for name, tc := range changedVolumes {
		for _, s := range handing {
			for _, keeps := range []bool{false, true} {
				n := withVolume(s, tc.volume, keeps)
				n.planVolumes()
				all, whose := strings.Join(n.Refused, "\n"), map[bool]string{false: "its file in talos.machineConfigs ", true: "the configuration that it keeps for its next boot "}[keeps]
				if want := slices.Contains(tc.refused, s); want != (len(n.Refused) == 1) || want && !strings.HasPrefix(all, whose+tc.says) {
					t.Errorf("%s, %s, keeps %t: refused %q, want %t: %s", name, s, keeps, all, want, tc.says)
				}
				refused := len(n.Refused) > 0
				n = withVolume(s, tc.volume, keeps)
				n.Wanted.AcceptLoss = []string{tc.volume.ID}
				n.planVolumes()
				if (len(n.Refused) > 0) != (refused && tc.final) || refused != (len(n.Refused)+len(n.WillLose) == 1) {
					t.Errorf("%s, %s: accepted, and refused %q, shown %q", name, s, n.Refused, n.WillLose)
				}
			}
		}
	}
}

func withVolume(s cluster.Strategy, v aVolume, keeps bool) NodePlan {
	m := cluster.Machine{SystemDisk: "sda", VolumeStatuses: []cluster.VolumeStatus{v.VolumeStatus}}
	ephemeral := "sda"
	if v.ID == "EPHEMERAL" {
		ephemeral = v.Disk
	}
	m.Volumes = []cluster.Volume{{Disk: ephemeral, Label: "EPHEMERAL"}}
	n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: s, WithConfig: true, Found: observe.Found{Machine: &m}}
	n.Found.Volumes.Runs = []cluster.ConfigVolume{v.runs}
	if keeps {
		n.Found.Volumes.Keeps = v.gets()
		return n
	}
	file := cluster.FoundFile{ConfigFile: cluster.ConfigFile{Reboot: []string{"machine.udev"}, Changes: []config.Change{{}}}, Volumes: v.gets()}
	n.Found.File = &file
	return n
}

// TestEtcdWithoutItsVolume: a member whose directory would be empty with its new configuration leaves etcd first; where
// that is impossible, nothing lifts the refusal.
func TestEtcdWithoutItsVolume(t *testing.T) {
	t.Parallel()
	dropped, stays := ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", demoted), ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", unchanged)
	gained := onEphemeral("ETCD", "VolumeConfig ETCD", promoted)
	for _, keeps := range []bool{false, true} {
		for _, s := range handing {
			n := withVolume(s, dropped, keeps)
			n.Role, n.Wanted.AcceptLoss = cluster.ControlPlane, []string{"ETCD"}
			n.planVolumes()
			what := fmt.Sprintf("%s, keeps %t, refused %q: lifted", s, keeps, n.Refused)
			must.Equal(t, what, slices.Contains(leaving, s), len(n.Refused) == 0)
			for name, v := range map[string]struct {
				volume aVolume
				moves  bool
			}{"dropped": {dropped, true}, "it stays": {stays, false}, "it becomes one": {gained, true}} {
				n := withVolume(s, v.volume, keeps)
				must.Equal(t, fmt.Sprintf("%s, %s, keeps %t: moves", name, s, keeps), v.moves, n.etcdMoves(s))
			}
		}
	}
}

// TestPlanOfEtcdWithoutItsVolume: etcd's data on a disk of its own is kept only if the configuration that goes out says so.
func TestPlanOfEtcdWithoutItsVolume(t *testing.T) {
	t.Parallel()
	for change, kept := range map[*func(*cluster.ConfigVolume)]bool{&demoted: false, &unchanged: true} {
		v := ready("ETCD", "VolumeConfig ETCD", "partition", "sdb", *change)
		n := withVolume("", v, false)
		n.Role, n.Found.Machine.ControlPlane = cluster.ControlPlane, true
		n.Found.Machine.Volumes = append(n.Found.Machine.Volumes, cluster.Volume{Disk: "sdb", ID: "ETCD", Label: "ETCD", Phase: "ready"})
		PlanEtcd(&n, observe.Observation{}, Policy{}, strategy.Decision{Strategy: cluster.Recreate}, cluster.Disk{}, nil)
		must.Equal(t, "kept", kept, n.EtcdKept)
	}
}

// TestAResetMachinesEncryption: what is on a partition that stays is not opened, or is erased, with another encryption.
func TestAResetMachinesEncryption(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		label, format string
		locked        bool // in the file
		refused       bool
	}{
		"plain, and stays so":     {"u-data", "xfs", false, false},
		"encrypted, and stays so": {"u-data", "luks", true, false},
		"plain to LUKS":           {"u-data", "xfs", true, true},
		"LUKS to plain":           {"r-data", "luks", false, true},
		"raw, not recognized":     {"r-data", "", true, true},
		"nothing in it":           {"u-data", "", true, false},
		"EPHEMERAL":               {"EPHEMERAL", "xfs", true, true},
		"EPHEMERAL, reset":        {"EPHEMERAL", "", true, false},
		"STATE, reset":            {"STATE", "", true, false},
		"swap":                    {"s-data", "swap", true, false},
	} {
		n := NodePlan{Found: observe.Found{Blank: &cluster.BlankMachine{Machine: cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: tc.label, Format: tc.format}}}}}}
		is := cluster.ConfigVolume{ID: tc.label, Document: "the document", Type: cluster.PartitionVolume}
		if tc.locked {
			is.Encryption = luks("a")
		}
		n.planBlankVolumes([]cluster.ConfigVolume{is}, "its file")
		if got := strings.Join(n.Refused, "\n"); (got != "") != tc.refused || tc.refused && !strings.Contains(got, "its file has another encryption for the document, whose volume on the disk sdb is") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAResetMachinesVolumes: of a machine without a configuration, partitions show which volumes it had.
func TestAResetMachinesVolumes(t *testing.T) {
	t.Parallel()
	_, o := paused(nil)
	f := o.Found[1]
	f.Blank = &cluster.BlankMachine{Machine: cluster.Machine{SystemDisk: "sda", Volumes: []cluster.Volume{
		{Disk: "sda", Label: "EPHEMERAL"}, {Disk: "sdb", Label: "u-data"}, {Disk: "sdb", Label: "ETCD"}, {Disk: "sdb", Label: "s-swap"}, {Disk: "sdc", Label: "mine"},
	}}}
	f.Machine, f.ConfigKnown = nil, true
	f.File = &cluster.FoundFile{Role: cluster.Worker, Volumes: []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.DirectoryVolume}}}
	n := ForNode(cluster.Wanted{Name: "wk1"}, f, o, clustertest.Past, Policy{})
	if all := strings.Join(n.Refused, "\n"); n.Strategy != cluster.InstallReset || len(n.Refused) != 2 || !strings.Contains(all, "lacks UserVolumeConfig data, whose volume is on the disk sdb") || !strings.Contains(all, "lacks VolumeConfig ETCD") {
		t.Errorf("%s: %q", n.Strategy, n.Refused)
	}
	f.File.Volumes = []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.PartitionVolume}, {ID: "u-data", Type: cluster.PartitionVolume}}
	if n = ForNode(cluster.Wanted{Name: "wk1"}, f, o, clustertest.Past, Policy{}); len(n.Refused) > 0 {
		t.Errorf("a file with both: %q", n.Refused)
	}
}
