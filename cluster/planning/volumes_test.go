package planning

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
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
				must.Hold(t, (len(n.Refused) > 0) == (refused && tc.final) && refused == (len(n.Refused)+len(n.WillLose) == 1),
					"%s, %s: accepted, and refused %q, shown %q", name, s, n.Refused, n.WillLose)
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
	f.Blank = &cluster.BlankMachine{Fingerprint: "shown", Machine: cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u"}, SystemDisk: "sda", Volumes: []cluster.Volume{
		{Disk: "sda", Label: "EPHEMERAL"}, {Disk: "sdb", Label: "u-data"}, {Disk: "sdb", Label: "ETCD"}, {Disk: "sdb", Label: "s-swap"}, {Disk: "sdc", Label: "mine"},
	}}}
	f.Machine, f.ConfigKnown = nil, true
	f.File = &cluster.FoundFile{Role: cluster.Worker, Volumes: []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.DirectoryVolume}}}
	n := ForNode(cluster.Wanted{Name: "wk1"}, f, o, clustertest.Past, Policy{Fingerprints: []string{"shown"}})
	if all := strings.Join(n.Refused, "\n"); n.Strategy != cluster.InstallReset || len(n.Refused) != 2 || !strings.Contains(all, "lacks UserVolumeConfig data, whose volume is on the disk sdb") || !strings.Contains(all, "lacks VolumeConfig ETCD") {
		t.Errorf("%s: %q", n.Strategy, n.Refused)
	}
	f.File.Volumes = []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.PartitionVolume}, {ID: "u-data", Type: cluster.PartitionVolume}}
	if n = ForNode(cluster.Wanted{Name: "wk1"}, f, o, clustertest.Past, Policy{Fingerprints: []string{"shown"}}); len(n.Refused) > 0 {
		t.Errorf("a file with both: %q", n.Refused)
	}
	for sku, refused := range map[string]string{"": "which nobody has confirmed", "recast" + strings.Repeat("0", 32): "not the SKU number that recast wrote"} {
		vm := cluster.VM{Config: map[string]string{"smbios1": "uuid=u,sku=" + sku}}
		f.VM = &vm
		if n = ForNode(cluster.Wanted{Name: "wk1"}, f, o, clustertest.Past, Policy{}); !strings.Contains(strings.Join(n.Refused, "\n"), refused) {
			t.Errorf("a machine that does not prove to be the VM with SKU %q: %q", sku, n.Refused)
		}
	}
}

func TestPlanTellsWhatChangesInTheVM(t *testing.T) {
	t.Parallel()
	type row struct {
		strategy cluster.Strategy
		change   func(w *cluster.Wanted, vm *cluster.VM)
		renewed  []string
		notes    []string
		newSize  string
	}
	must.Each(t, map[string]row{
		"recreate": {cluster.Recreate, func(*cluster.Wanted, *cluster.VM) {}, []string{"volid of scsi1"}, nil, ""},
		"what Proxmox makes": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) {
			vm.Config["vmgenid"], vm.Config["meta"], vm.Config["efidisk0"] = "0a", "creation-qemu=9", clustertest.Volid(vm.ID, 7)
		}, []string{"vmgenid", "meta", "volid of efidisk0", "volid of scsi1"}, nil, ""},
		"no generation ID": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0" }, []string{"vmgenid (which is switched off now)", "volid of scsi1"}, nil, ""},
		"reimage":          {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0a" }, nil, nil, ""},
		"protection": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["protection"] = "1" }, nil,
			[]string{"the VM's protection is lifted meanwhile and set again at the end"},
			"",
		},
		"a medium of the user's": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil,
			[]string{"ide2 gets the boot ISO and is empty at the end: isos:iso/debian.iso is taken out"},
			"",
		},
		"a medium of ours": {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/recast-x.iso,media=cdrom" }, nil, nil, ""},
		"an empty drive":   {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "none,media=cdrom" }, nil, nil, ""},
		"an old boot order": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["boot"], vm.Config["bootdisk"] = "cdn", "scsi0" }, nil,
			[]string{"its boot order of the old kind (cdn) becomes one by device, its system disk first"},
			"",
		},
		"grown":         {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 20 }, nil, nil, "20G"},
		"the same size": {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 10 }, nil, nil, ""},
		"smaller": {
			cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 8 }, nil,
			[]string{"the new system disk has 10G like the old one, not the 8G wanted: recast never shrinks a disk"},
			"",
		},
	}, func(t *testing.T, tc row) {
		wanted, o := observetest.World()
		wanted[1].Strategy = tc.strategy
		tc.change(&wanted[1], o.Found[1].VM)
		plan := planned(t, wanted, o, Policy{})
		n := plan.Work()[0]
		must.Equal(t, "got", []any{tc.renewed, tc.notes, tc.newSize, []string(nil)}, []any{n.Renewed, n.Notes, n.System.NewSize, n.Refused})
	})
}

// TestPlanCountsTheNumbersOfParkingVMs refuses the nodes whose parking VM gets no number.
func TestPlanCountsTheNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	stale := func() ([]cluster.Wanted, observe.Observation) {
		wanted, o := observetest.World()
		for i := range o.Found {
			o.Found[i].Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
		}
		return wanted[1:], observe.Observation{Quorate: true, Storages: o.Storages, Rooms: o.Rooms, VMs: o.VMs, Found: o.Found[1:], ParkingIDs: o.ParkingIDs}
	}
	const lack = "no VMID is left for its parking VM: this roll takes 2, and 1 of proxmox.vmids are free: widen it, or leave nodes out with --exclude"
	type row struct {
		change func(w []cluster.Wanted, o *observe.Observation)
		want   string // why wk2 is refused
	}
	cases := map[string]row{
		"enough":        {change: func([]cluster.Wanted, *observe.Observation) {}},
		"one that fits": {change: func(_ []cluster.Wanted, o *observe.Observation) { o.ParkingIDs = []cluster.VMID{9092} }, want: lack},
		"one of another": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.VMs = append(o.VMs, cluster.VM{ID: 9092}, cluster.VM{ID: 9091})
		}, want: lack},
		"one has its parking VM": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, o.Found[0].Parking = []cluster.VMID{9092}, &parking.Parking{VM: cluster.VM{ID: 9091}}
		}},
		"one in place": {change: func(w []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, w[0].Strategy = []cluster.VMID{9092}, cluster.InPlace
		}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		wanted, o := stale()
		tc.change(wanted, &o)
		plan := planned(t, wanted, o, Policy{})
		refused := map[string]string{}
		for _, n := range plan.Work() {
			refused[n.Node] = strings.Join(n.Refused, "; ")
		}
		must.Hold(t, len(refused) == 2 && refused["wk1"] == "" && refused["wk2"] == tc.want, "%q", refused)
	})
}

// TestReshape plans nodes whose VMs are not as wanted. wk1 is stale, and wk2 is not.
func TestReshape(t *testing.T) {
	t.Parallel()
	off := shape.Difference{Key: "memory", Found: "4096", Wanted: "8192", When: shape.Off}
	live := shape.Difference{Key: "tags", Wanted: "talos", When: shape.Live}
	never := shape.Difference{Key: "scsi1 size", Found: "20G", Wanted: "10G", When: shape.Never, Why: "recast makes no disk smaller"}
	type row struct {
		node     string
		differs  shape.Differences
		policy   Policy
		change   func(*observe.Observation, *observe.Found)
		strategy cluster.Strategy
		why      string
		refused  string
	}
	cases := map[string]row{
		"live":                    {node: "wk2", differs: shape.Differences{live}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it stays up"},
		"off":                     {node: "wk2", differs: shape.Differences{live, off}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; its VM has to be off"},
		"never":                   {node: "wk2", differs: shape.Differences{live, never}, strategy: cluster.Reshape, refused: "its VM is not as recast.yaml wants it (scsi1 size: 20G → 10G): recast makes no disk smaller"},
		"a stale node":            {node: "wk1", differs: shape.Differences{off}, strategy: cluster.Recreate, why: "recreate: possible"},
		"a stale node, never":     {node: "wk1", differs: shape.Differences{never}, strategy: cluster.Recreate, refused: "recast makes no disk smaller"},
		"only images":             {node: "wk2", differs: shape.Differences{off}, policy: Policy{What: []What{Image}}, why: "only its VM differs, excluded by --what image"},
		"only images, stale":      {node: "wk1", differs: shape.Differences{never}, policy: Policy{What: []What{Image}}, strategy: cluster.Recreate},
		"only VMs, stale":         {node: "wk1", differs: shape.Differences{off}, policy: Policy{What: []What{VM}}, strategy: cluster.Reshape},
		"only VMs, which is well": {node: "wk1", policy: Policy{What: []What{VM}}, why: "its image is not as wanted, excluded by --what vm"},
		"one control plane":       {node: "cp1", differs: shape.Differences{off}, change: oneControlPlane, strategy: cluster.Reshape},
		"a locked VM":             {node: "wk2", differs: shape.Differences{live}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Lock = "backup" }, strategy: cluster.Reshape, refused: "the VM is locked (backup)"},
		"a locked VM, off":        {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Lock = "backup" }, strategy: cluster.Reshape, refused: "the VM is locked (backup)"},
		"pending changes":         {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Pending = []string{"cores"} }, strategy: cluster.Reshape, refused: "the VM has pending changes (cores)"},
		"pending, live":           {node: "wk2", differs: shape.Differences{live}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Pending = []string{"cores"} }, strategy: cluster.Reshape},
		"a snapshot":              {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.Ties.Snapshots = []string{"before"} }, strategy: cluster.Reshape},
		"a throw-away disk":       {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Config["scsi0"] += ",snapshot=1" }, strategy: cluster.Reshape, refused: "snapshot"},
		"another VM has its disk": {node: "wk2", differs: shape.Differences{off}, change: func(o *observe.Observation, f *observe.Found) {
			o.VMs[0].Config["scsi5"] = f.VM.Config["scsi1"]
		}, strategy: cluster.Reshape, refused: "scsi1"},
		"no number for its record":       {node: "wk2", differs: shape.Differences{off}, change: func(o *observe.Observation, _ *observe.Found) { o.ParkingIDs = nil }, strategy: cluster.Reshape, refused: "no VMID is left for its parking VM"},
		"live takes no number":           {node: "wk2", differs: shape.Differences{live}, change: func(o *observe.Observation, _ *observe.Found) { o.ParkingIDs = nil }, strategy: cluster.Reshape},
		"its host":                       {node: "wk2", differs: shape.Differences{host(shape.Live)}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it stays up"},
		"its host, of a stale node":      {node: "wk1", differs: shape.Differences{host(shape.Live)}, strategy: cluster.Recreate},
		"its host, off":                  {node: "wk2", differs: shape.Differences{off, host(shape.Off)}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; its VM has to be off"},
		"its host, off, of a stale node": {node: "wk1", differs: shape.Differences{off, host(shape.Off)}, strategy: cluster.Recreate, refused: "host: pve1 → pve2): HA manages it. Disks can be handed over on one host only"},
		"unproven system disk":           {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.Machine.Disks[0].Serial = "" }, strategy: cluster.Reshape, refused: "system disk can't be proven"},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		wanted, o := observetest.World()
		for i := range o.Found {
			if f := &o.Found[i]; f.Name == c.node {
				f.Shape = c.differs
				o.Rooms["pve2"] = o.Rooms[f.VM.Host]
				if c.change != nil {
					c.change(&o, f)
				}
			}
		}
		c.policy.Only = []string{c.node}
		plan := planned(t, wanted, o, c.policy)
		n := plan.Nodes[0]
		must.Hold(t, n.Strategy == c.strategy && strings.HasPrefix(n.Why, c.why), "planned as %q: %s", n.Strategy, n.Why)
		if refused := strings.Join(n.Refused, "; "); (refused == "") != (c.refused == "") || !strings.Contains(refused, c.refused) {
			t.Errorf("refused: %q, want %q", refused, c.refused)
		}
	})
}

// host is a difference of a VM's host.
func host(w shape.When) shape.Difference {
	d := shape.Difference{Key: "host", Found: "pve1", Wanted: "pve2", When: w}
	if w == shape.Off {
		d.Why = "HA manages it"
	}
	return d
}

// TestPlanMove: a node whose VM is migrated first is rolled on its new host, with the parking VM there.
func TestPlanMove(t *testing.T) {
	t.Parallel()
	for _, w := range []shape.When{shape.Live, shape.Off, shape.Never} {
		wanted, o := observetest.World()
		for i := range o.Found {
			if f := &o.Found[i]; f.Name == "wk1" {
				f.Shape, f.VM.Config["cpu"] = shape.Differences{host(w)}, "host"
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9901, Host: "pve1"}}
				f.Elsewhere = []parking.Parking{{VM: cluster.VM{ID: 9902, Host: "pve2"}}}
			}
		}
		plan := planned(t, wanted, o, Policy{Only: []string{"wk1"}})
		n, at, park := plan.Nodes[0], "pve1", cluster.VMID(9901)
		if w == shape.Live {
			at, park = "pve2", 9902
		}
		if n.Host != at || n.Space.Host != at || n.Found.Parking.VM.ID != park || len(n.Found.Elsewhere) != 1 || !slices.Contains(n.Slots, hostSlot(at)) {
			t.Errorf("%s: on %s, its new disk on %s, parked on %s, slots %v", w, n.Host, n.Space.Host, n.Found.Parking.VM, n.Slots)
		}
		told := strings.Contains(strings.Join(n.Notes, "\n"), "its CPU type is host")
		must.Equal(t, fmt.Sprintf("%s, told in %q", w, n.Notes), w == shape.Live, told)
	}
}

func oneControlPlane(o *observe.Observation, f *observe.Found) {
	o.Nodes = []cluster.KubeNode{{Name: f.Name, ControlPlane: true, Ready: true, Addresses: []netip.Addr{f.Addr}}}
}

func TestPlanFrees(t *testing.T) {
	t.Parallel()
	three := []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}
	type row struct {
		strategy cluster.Strategy
		refused  bool
		keep     int
		kept     []string
		edit     func(*parking.Parking)
		others   []cluster.VM
		want     []string
		notes    int
	}
	must.Each(t, map[string]row{
		"the first roll":           {strategy: cluster.Recreate},
		"the second":               {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"two stay":                 {strategy: cluster.Reimage, keep: 2, kept: []string{"scsi30 r1"}},
		"two of three stay":        {strategy: cluster.Reimage, keep: 2, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1"}},
		"never none":               {strategy: cluster.Recreate, keep: -3, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1", "scsi28 fast:vm-9900-disk-2"}},
		"a node that stays":        {kept: three},
		"refused":                  {strategy: cluster.Recreate, refused: true, kept: three},
		"a rollback":               {strategy: cluster.Rollback, kept: three},
		"a put-back":               {strategy: cluster.PutBack, kept: three},
		"in place":                 {strategy: cluster.InPlace, kept: three},
		"in place, begun before":   {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"begun, the drive is gone": {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true; delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"an unfinished one":        {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.Record.Open = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"a drive that is gone":     {strategy: cluster.Recreate, keep: 2, kept: []string{"scsi30 r1", "scsi29 r2"}, edit: func(p *parking.Parking) { delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"another disk":             {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-4,serial=other" }, notes: 1},
		"named twice":              {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, others: []cluster.VM{{ID: 7, Config: map[string]string{"sata0": "fast:vm-9900-disk-0"}}}, notes: 1},
	}, func(t *testing.T, tc row) {
		p := clustertest.Park(9900, "pve1", "wk1", tc.kept...)
		if tc.edit != nil {
			tc.edit(&p)
		}
		n := NodePlan{Node: "wk1", Strategy: tc.strategy}
		if tc.kept != nil {
			n.Found.Parking = &p
		}
		if tc.refused {
			n.Refused = []string{"no"}
		}
		n.planFrees(observe.Observation{VMs: append(tc.others, clustertest.Described(t, p))}, tc.keep)
		got := cluster.Each(n.Frees, func(f parking.FreePlan) string { return f.Key + " " + f.Volid })
		must.Equal(t, "frees", tc.want, got)
		must.Equal(t, fmt.Sprintf("notes %q", n.Notes), tc.notes, len(n.Notes))
	})
}

// TestNoteInitiators: only a node that gets another system disk has another name, for the protocols that volumes use.
func TestNoteInitiators(t *testing.T) {
	t.Parallel()
	of := func(s cluster.Strategy, served ...cluster.LocalData) NodePlan {
		return NodePlan{Node: "wk1", Strategy: s, Found: observe.Found{Node: &cluster.KubeNode{MachineID: "4c4c4544004f5a10805ac7c04f4a3233"}, Served: served}}
	}
	volume := cluster.LocalData{What: "PersistentVolume a (claim default/db-0)", Access: cluster.ISCSI}
	note := "its name for iSCSI (iqn.2017-11.dev.talos:4c4c4544004f5a10805ac7c04f4a3233) changes with the system disk, as its machine-id does: " +
		"where the server of PersistentVolume a (claim default/db-0) lets in only names that it knows, add the new one, which the roll shows"
	p := Plan{Nodes: []NodePlan{of(cluster.Recreate, volume), of(cluster.Reimage, volume), of(cluster.InPlace, volume), of(cluster.Recreate)}}
	noteInitiators(&p)
	got := cluster.Each(p.Nodes, func(n NodePlan) []string { return n.Notes })
	must.Equal(t, "got", [][]string{{note}, {note}, nil, nil}, got)
}

// TestNodesWithOtherNamesGoOneByOne: they share a slot with room for one, however many may be out.
func TestNodesWithOtherNamesGoOneByOne(t *testing.T) {
	t.Parallel()
	p := Plan{MaxUnavailable: 3, PerHost: 3, Nodes: []NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Phase: Workers, Host: "pve1", Initiators: []string{cluster.ISCSI}},
		{Node: "wk2", Strategy: cluster.Recreate, Phase: Workers, Host: "pve2"},
	}}
	p.Arrange()
	diff := cmp.Diff([][]string{{"host/pve1", "initiator"}, {"host/pve2"}}, [][]string{p.Nodes[0].Slots, p.Nodes[1].Slots})
	must.Hold(t, diff == "" && p.Room["initiator"] == 1, "room %v (-want +got):\n%s", p.Room, diff)
}

func TestChooseSurge(t *testing.T) {
	t.Parallel()
	there := func(name string) foundSurge { return foundSurge{Name: name, There: true} }
	fits := func(name string) foundSurge { return foundSurge{Name: name, Fits: true} }
	full := func(name string) foundSurge { return foundSurge{Name: name} }
	type row struct {
		nodes []foundSurge
		need  surgeNeed
		want  *SurgePlan
		fails string
	}
	must.Each(t, map[string]row{
		"none asked for":           {[]foundSurge{fits("s1")}, surgeNeed{Workers: 3, Out: 1}, nil, ""},
		"no worker taken out":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 3}, nil, ""},
		"one":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"two":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 2, Workers: 9, Out: 2}, &SurgePlan{Nodes: []string{"s1", "s2"}, Make: []string{"s1", "s2"}, Workers: 9, Least: 9}, ""},
		"more out than surge":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 9, Out: 3}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 9, Least: 7}, ""},
		"one is there":             {[]foundSurge{fits("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"more are there":           {[]foundSurge{there("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1", "s2"}, Workers: 3, Least: 3}, ""},
		"the first does not fit":   {[]foundSurge{full("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Make: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"none fits":                {[]foundSurge{full("s1")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"left over":                {[]foundSurge{there("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"left over, asked no more": {[]foundSurge{there("s1")}, surgeNeed{Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"too few":                  {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 2, Workers: 9, Out: 1}, nil, "roll.surge asks for 2 surge nodes, and this roll has 1"},
	}, func(t *testing.T, c row) {
		got, err := chooseSurge(c.nodes, c.need)
		if c.fails != "" {
			must.FailAs(t, err, fault.Config)
			must.Equal(t, "error", c.fails, fmt.Sprint(err))
			return
		}
		must.Pass(t, err)
		must.Equal(t, "chosen", c.want, got)
	})
}

func TestSurgeLines(t *testing.T) {
	t.Parallel()
	type row struct {
		plan *SurgePlan
		want []string
	}
	must.Each(t, map[string]row{
		"nothing": {nil, nil},
		"made":    {&SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, []string{"s1: made before", "never fewer than 3 workers serve", "s1: removed"}},
		"there":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 1, Least: 1}, []string{"never fewer than 1 worker serves", "s1: removed"}},
		"fewer":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 9, Least: 7}, []string{"at least 7 of 9 workers serve: roll.maxUnavailable", "s1: removed"}},
		"left":    {&SurgePlan{Remove: []string{"s1", "s2"}}, []string{"s1, s2: left over by an earlier roll"}},
	}, func(t *testing.T, c row) {
		got := c.plan.Lines()
		must.Hold(t, slices.EqualFunc(got, c.want, strings.HasPrefix), "%q, want %q", got, c.want)
	})
}

// TestUndo: what is unfinished comes first, and one node at a time; then the nodes of the latest run that
// has left a system disk.
func TestUndo(t *testing.T) {
	t.Parallel()
	const older, latest = "20261120-0300-aaaa", "20261121-0421-3f2a"
	open := &parking.Parking{Record: parking.Record{Run: latest, Open: true}}
	kept := func(run string) *parking.Parking {
		return &parking.Parking{Record: parking.Record{Kept: []parking.KeptDisk{{Run: run}}}}
	}
	type row struct {
		parkings []*parking.Parking // of wk1, wk2, wk3
		only     []string
		way      Way
		run      string
		unsure   bool // which run was the last one
		says     string
		nodes    string // of the plan to boot previous system disks
		err      string
	}
	must.Each(t, map[string]row{
		"a run by its ID":         {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, run: older, nodes: "wk2"},
		"a run by its end":        {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, run: "3f2a", nodes: "wk1 wk3"},
		"a run of none":           {parkings: []*parking.Parking{kept(latest), nil, nil}, run: "beef", err: `no node's present system disk is of a run "beef"`},
		"a run of two":            {parkings: []*parking.Parking{kept(latest), kept(older), nil}, run: "202611", err: "is a part of several runs: " + older + ", " + latest},
		"another run is open":     {parkings: []*parking.Parking{open, kept(older), nil}, run: older, err: "node wk1: an earlier run is not finished"},
		"no last run":             {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, err: "which run was the last one is not certain"},
		"named all the same":      {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, only: []string{"wk2"}, nodes: "wk2"},
		"a run all the same":      {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, run: older, nodes: "wk2"},
		"nothing to undo":         {parkings: make([]*parking.Parking, 3), err: "no earlier system disk of a node is parked"},
		"two are unfinished":      {parkings: []*parking.Parking{open, open, nil}, err: "wk1, wk2: an earlier run is not finished"},
		"one of two named is":     {parkings: []*parking.Parking{open, kept(latest), nil}, only: []string{"wk1", "wk2"}, err: "wk1: an earlier run is not finished"},
		"another one is":          {parkings: []*parking.Parking{open, kept(latest), nil}, only: []string{"wk2"}, err: "node wk1: an earlier run is not finished"},
		"the latest run":          {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, nodes: "wk1 wk3", says: "run " + latest + ": wk1, wk3"},
		"a node of an older one":  {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, only: []string{"wk2"}, nodes: "wk2"},
		"a node with nothing":     {parkings: []*parking.Parking{kept(latest), nil, nil}, only: []string{"wk2"}, nodes: "wk2"},
		"a finished one, cancel":  {parkings: []*parking.Parking{kept(latest), nil, nil}, way: Cancel, only: []string{"wk1"}, err: "node wk1: no replacement of it is unfinished"},
		"an open one, previous":   {parkings: []*parking.Parking{open, nil, nil}, way: Previous, only: []string{"wk1"}, err: "node wk1: an earlier run is not finished"},
		"another is, previous":    {parkings: []*parking.Parking{open, kept(latest), nil}, way: Previous, err: "node wk1: an earlier run is not finished"},
		"all, previous":           {parkings: []*parking.Parking{kept(latest), nil, kept(older)}, unsure: true, way: Previous, nodes: "wk1 wk2 wk3"},
		"a node that there isn't": {parkings: make([]*parking.Parking, 3), only: []string{"wk9"}, err: `no node "wk9"`},
	}, func(t *testing.T, c row) {
		var wanted []cluster.Wanted
		var o observe.Observation
		said := ""
		for i, p := range c.parkings {
			wanted = append(wanted, cluster.Wanted{Name: []string{"wk1", "wk2", "wk3"}[i]})
			o.Found = append(o.Found, observe.Found{Parking: p})
		}
		plan, way, err := ForUndo(t.Context(), "c1", wanted, o, nil, nil, Policy{Only: c.only}, Undone{
			Way: c.way, Run: c.run, Say: func(text string) { said = text },
			Order: func(runs []Replacing) ([]Replacing, bool) {
				slices.SortFunc(runs, func(a, b Replacing) int { return strings.Compare(b.Run, a.Run) })
				return runs, !c.unsure || len(runs) == 1
			},
		})
		must.Hold(t, (c.says == "" || said == c.says) && (len(c.only) == 0 || said == ""), "said %q, want %q", said, c.says)
		if c.err != "" {
			must.Fail(t, err, c.err)
			kind := fault.KindOf(err)
			must.Hold(t, kind == fault.Refused || kind == fault.Config, "kind %v", kind)
			return
		}
		nodes := cluster.Each(plan.Nodes, func(n NodePlan) string { return n.Node })
		got := strings.Join(nodes, " ")
		must.Hold(t, err == nil && way == Previous && got == c.nodes, "%s of %q, want of %q: %v", way, got, c.nodes, err)
	})
}

// TestGiveUp: nothing is to be deleted that anybody else has made, or that may be in use.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	const parked, made = "qm set 9800 --protection 0 && qm destroy 9800", "qm set 9011 --protection 0 && qm destroy 9011 && " + "qm set 9800 --protection 0 && qm destroy 9800"
	type row struct {
		change func(*observe.Found, *parking.Memory)
		want   string // how it ends; "": nothing more
	}
	must.Each(t, map[string]row{
		"not made yet":           {func(f *observe.Found, _ *parking.Memory) { f.VM = nil }, parked},
		"made":                   {nil, made},
		"it runs":                {func(f *observe.Found, _ *parking.Memory) { f.VM.Running = true }, "switch VM 9011 off, and run the same command again"},
		"HA may start it":        {func(f *observe.Found, _ *parking.Memory) { f.VM.HA = true }, ""},
		"it serves":              {func(f *observe.Found, _ *parking.Memory) { f.Node = &cluster.KubeNode{} }, ""},
		"it answers":             {func(f *observe.Found, _ *parking.Memory) { f.Machine = &cluster.Machine{} }, ""},
		"a control plane":        {func(_ *observe.Found, m *parking.Memory) { m.ControlPlane = true }, ""},
		"somebody else made it":  {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["description"] = "" }, ""},
		"another disk":           {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi1"] = "fast:vm-9011-disk-7" }, ""},
		"the disk of another VM": {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi0"] = "fast:vm-200-disk-0,serial=new" }, ""},
		"another system disk":    {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi0"] = "fast:vm-9011-disk-0,serial=x" }, ""},
		"a snapshot":             {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["parent"] = "before" }, ""},
		"a disk on the parking VM": {func(f *observe.Found, _ *parking.Memory) {
			f.Parking.VM.Config["scsi3"] = "fast:vm-9800-disk-0"
		}, ""},
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: 9011, Host: "pve1", Config: map[string]string{
			"scsi0": "fast:vm-9011-disk-0,serial=new", "efidisk0": "fast:vm-9011-disk-1", "ide2": "isos:iso/a.iso,media=cdrom", "description": parking.MarkDescription("", "r1", "b"),
		}}
		f := observe.Found{VM: &vm, Parking: &parking.Parking{VM: cluster.VM{ID: 9800, Host: "pve1", Config: map[string]string{}}, Record: parking.Record{Node: "wk1", Run: "r1", VMID: 9011}}}
		mem := parking.Memory{DiskSerial: "new"}
		if c.change != nil {
			c.change(&f, &mem)
		}
		f.Parking.Record.Memory = must.Get(mem.Pack())(t)
		got := giveUp(f)
		if !strings.HasPrefix(got, "recast roll finishes it; recast remove wk1 then takes it away, and keeps its disks") || strings.Contains(got, "To cancel it") != (c.want != "") || strings.Contains(got, "qm ") != strings.Contains(c.want, "qm ") || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s\nwant %q", got, c.want)
		}
	})
}

// TestWhatATrialCannotTakeBack: a plan whose configuration needs no reboot names what Talos formats for it.
func TestWhatATrialCannotTakeBack(t *testing.T) {
	t.Parallel()
	added := func(document string) config.Change { return config.Change{Document: document, Kind: config.Added} }
	removed := config.Change{Document: "UserVolumeConfig old", Kind: config.Removed}
	grown := config.Change{Document: "UserVolumeConfig data", Path: "provisioning.maxSize", Kind: config.Changed, Found: "1GB", Wanted: "2GB"}
	for want, changes := range map[string][]config.Change{
		"": {added("HostnameConfig"), removed, grown},
		"Talos makes and formats UserVolumeConfig data, RAIDArrayConfig md0 at once: if wk1 is not healthy then, it takes its configuration back, but not that": {
			added("UserVolumeConfig data"), added("RAIDArrayConfig md0"), removed,
		},
	} {
		n := NodePlan{Node: "wk1", Found: observe.Found{File: &cluster.FoundFile{ConfigFile: cluster.ConfigFile{Changes: changes}}}}
		planApplyConfig(&n, observe.Observation{}, Policy{})
		must.Equal(t, "notes", want, strings.Join(n.Notes, "\n"))
	}
}
