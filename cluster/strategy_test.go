package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// staleNode is a worker with a system disk, two persistent disks of its own and
// nothing that stands in the way of anything.
func staleNode() (Wanted, Found, Observation) {
	vm := VM{ID: 9002, Name: "wk1", Host: "pve1", Running: true, Config: map[string]string{
		"smbios1":  "uuid=u-wk1",
		"scsi0":    "fast:vm-9002-disk-0,serial=sys,size=10G",
		"scsi1":    "fast:vm-9002-disk-1,serial=data,size=20G",
		"virtio3":  "bulk:9002/vm-9002-disk-2.raw,serial=more,size=90G",
		"unused0":  "fast:vm-9002-disk-7",
		"ide0":     "fast:vm-9002-cloudinit,media=cdrom",
		"ide2":     "isos:iso/debian.iso,media=cdrom",
		"efidisk0": "fast:vm-9002-disk-3,size=528K",
	}}
	m := Machine{
		UUID: "u-wk1", SystemDisk: "sda",
		Disks: []MachineDisk{{Device: "sda", Serial: "sys"}, {Device: "sdb", Serial: "data"}, {Device: "vda", Serial: "more"}},
		Volumes: []Volume{
			{Device: "sda1", Disk: "sda", Label: "EFI"},
			{Device: "sda2", Disk: "sda", Label: "META", Phase: "ready"},
			{Device: "sda3", Disk: "sda", Label: "STATE", Phase: "ready"},
			{Device: "sda4", Disk: "sda", Label: "EPHEMERAL", Phase: "ready"},
			{Device: "sdb1", Disk: "sdb", Label: "u-data", Phase: "ready"},
			{Device: "vda", Disk: "vda", FilesystemUUID: "f"},
		},
	}
	w := Wanted{Name: "wk1", Strategy: Auto, Build: Build{ID: "3f2a3f2a3f2a3f2a"}}
	f := Found{Name: "wk1", VM: &vm, Machine: &m, Node: &KubeNode{Name: "wk1"}}
	leased(&f)
	o := Observation{
		VMs:      []VM{vm, {ID: 200, Name: "data", Host: "pve1", Config: map[string]string{}}},
		Storages: []Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin"}},
	}
	return w, f, o
}

// judge proves the system disk and decides, as the planner does.
func judge(w Wanted, f Found, o Observation) Decision {
	if f.VM == nil || f.Machine == nil {
		return Decide(w, f, o, Disk{}, nil)
	}
	o.VMs[0] = *f.VM
	system, err := ProveSystemDisk(*f.VM, *f.Machine, w.SystemDisk)
	return Decide(w, f, o, system, err)
}

func TestDecideTakesTheFirstThatIsPossible(t *testing.T) {
	t.Parallel()
	args := func(f *Found) { f.VM.Config["args"] = "-x" }
	password := func(f *Found) { f.VM.Config["cipassword"] = "**********" }
	snapshot := func(f *Found) { f.Ties.Snapshots = []string{"before", "later"} }
	failed := func(f *Found) { f.Node.FailedBuild = "3f2a3f2a3f2a3f2a" }
	const (
		argsText     = "its setting args can only be written by root@pam: use a resource mapping where there is one, or reimage"
		passwordText = "the VM has cipassword, which Proxmox shows to nobody: remove it, or use reimage"
		snapshotText = "the VM has snapshots (before, later), whose disks can't leave it: delete them first"
		failedText   = "build 3f2a3f2a3f2a came back as the old system once, and is never tried again with the same image: " +
			"lock another version or other extensions, or use recreate or reimage"
	)
	noArgs := Obstacle{Text: argsText} // without them it is another machine
	noPassword := Obstacle{Text: passwordText, Command: "qm set 9002 --delete cipassword"}
	noSnapshots := Obstacle{Text: snapshotText, Command: "qm delsnapshot 9002 before && qm delsnapshot 9002 later"}
	for name, tc := range map[string]struct {
		asked  Strategy
		change []func(*Found)
		want   Decision
	}{
		"auto, all possible": {Auto, nil, Decision{Strategy: Recreate, Why: "recreate: possible, every persistent disk can be carried over"}},
		"auto, no recreate": {Auto, []func(*Found){args, password}, Decision{
			Strategy: Reimage, Why: "reimage: recreate is impossible (" + argsText + "; " + passwordText + ")",
			ToRecreate: []Obstacle{noArgs, noPassword},
		}},
		"auto, no reimage": {Auto, []func(*Found){snapshot}, Decision{
			Strategy: InPlace, Why: "in-place: recreate and reimage are impossible (" + snapshotText + ")",
			ToRecreate: []Obstacle{noSnapshots},
		}},
		"auto, neither, for several reasons": {Auto, []func(*Found){snapshot, args}, Decision{
			Strategy: InPlace, Why: "in-place: recreate and reimage are impossible (" + snapshotText + "), recreate also (" + argsText + ")",
			ToRecreate: []Obstacle{noSnapshots, noArgs},
		}},
		"auto, none": {Auto, []func(*Found){snapshot, args, failed}, Decision{
			Strategy: Auto, Why: "no strategy is possible",
			Refused:    []string{"recreate, reimage: " + snapshotText, "recreate: " + argsText, "in-place: " + failedText},
			ToRecreate: []Obstacle{noSnapshots, noArgs},
		}},
		"a build that failed in place": {Auto, []func(*Found){failed}, Decision{Strategy: Recreate, Why: "recreate: possible, every persistent disk can be carried over"}},
		"recreate":                     {Recreate, nil, Decision{Strategy: Recreate, Why: "recreate: as configured"}},
		"recreate, impossible": {Recreate, []func(*Found){snapshot, args, failed}, Decision{
			Strategy: Recreate, Why: "recreate: as configured", Refused: []string{snapshotText, argsText},
			ToRecreate: []Obstacle{noSnapshots, noArgs},
		}},
		"reimage":              {Reimage, []func(*Found){args, failed}, Decision{Strategy: Reimage, Why: "reimage: as configured"}},
		"reimage, impossible":  {Reimage, []func(*Found){snapshot, args}, Decision{Strategy: Reimage, Why: "reimage: as configured", Refused: []string{snapshotText}}},
		"in-place":             {InPlace, []func(*Found){snapshot, args}, Decision{Strategy: InPlace, Why: "in-place: as configured"}},
		"in-place, impossible": {InPlace, []func(*Found){failed}, Decision{Strategy: InPlace, Why: "in-place: as configured", Refused: []string{failedText}}},
		"not read": {InPlace, []func(*Found){func(f *Found) { f.Machine, f.Errs = nil, []error{errors.New("no answer")} }}, Decision{
			Strategy: InPlace, Why: "it could not be read", Refused: []string{"its machine could not be read: no answer: bring it back first"},
		}},
		"no VM": {Auto, []func(*Found){func(f *Found) { f.VM = nil }}, Decision{
			Strategy: Auto, Why: "it could not be read", Refused: []string{"it has no VM"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, f, o := staleNode()
			w.Strategy = tc.asked
			for _, change := range tc.change {
				change(&f)
			}
			if diff := cmp.Diff(tc.want, judge(w, f, o)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecideRepeatsWhatWillBeLost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		strategy Strategy
		change   func(*Found)
		accept   []string
		want     Decision
	}{
		"accepted": {Auto, nil, []string{"u-logs", "pv/pvc-1", "sda7"}, Decision{
			Strategy: Recreate, Why: "recreate: possible, every persistent disk can be carried over",
			WillLose: []string{
				"volume u-logs on the system disk will be lost", "partition sda7 on the system disk will be lost",
				"PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost",
			},
		}},
		"nothing is lost in place": {InPlace, nil, []string{"u-logs"}, Decision{Strategy: InPlace, Why: "in-place: as configured"}},
		"what is not there": {InPlace, nil, []string{"u-data", "u-typo"}, Decision{
			Strategy: InPlace, Why: "in-place: as configured",
			Notes: []string{
				"acceptLoss names u-data, but nothing of that name is on its system disk",
				"acceptLoss names u-typo, but nothing of that name is on its system disk",
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, f, o := staleNode()
			f.Machine.Volumes = append(f.Machine.Volumes, Volume{Device: "sda5", Disk: "sda", Label: "u-logs"}, Volume{Device: "sda7", Disk: "sda"})
			f.Local = []LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1 (claim default/db-0)", Path: "/var/lib/local/pvc-1"}}
			w.Strategy, w.AcceptLoss = tc.strategy, tc.accept
			if diff := cmp.Diff(tc.want, judge(w, f, o)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParkedDisks(t *testing.T) {
	t.Parallel()
	_, f, _ := staleNode()
	f.VM.Config["scsi4"] = "fast:vm-200-disk-0,serial=held"
	disks, err := f.VM.Disks()
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[Strategy]string{
		Recreate: "efidisk0 scsi0 scsi1 unused0 virtio3", Reimage: "scsi0", InPlace: "",
	} {
		var keys []string
		for _, d := range parkedDisks(disks, 9002, s, "scsi0") {
			keys = append(keys, d.Key)
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%s parks %q, want %q", s, got, want)
		}
	}
}

func TestEtcdRules(t *testing.T) {
	t.Parallel()
	const (
		two     = "etcd has two members: without this one it has no quorum and the Kubernetes API is down, and losing the other one meanwhile loses the cluster: allow it with --accept-outage"
		twoDown = "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile"
		lost    = "the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk " +
			"(a VolumeConfig for ETCD or EPHEMERAL), with recast backup before the installation that this takes, and recast restore after it"
		oneDown = "it is the only control plane: the Kubernetes API is down meanwhile"
	)
	for name, tc := range map[string]struct {
		members       int
		onSystem      bool
		strategies    []Strategy
		accept        bool
		refused, warn string
	}{
		"three":                     {3, true, []Strategy{Recreate, Reimage, InPlace, PutBack, Rollback}, false, "", ""},
		"five":                      {5, true, []Strategy{Recreate}, false, "", ""},
		"two":                       {2, true, []Strategy{Recreate, Reimage, InPlace, PutBack, Rollback}, false, two, ""},
		"two, accepted":             {2, true, []Strategy{Recreate, Reimage, InPlace}, true, "", twoDown},
		"one, data on system disk":  {1, true, []Strategy{Recreate, Reimage, Rollback}, true, lost, ""},
		"one, data kept":            {1, true, []Strategy{InPlace, PutBack}, false, "", oneDown},
		"one, data on its own disk": {1, false, []Strategy{Recreate, Reimage, InPlace, Rollback}, false, "", oneDown},
	} {
		for _, s := range tc.strategies {
			refused, warn := EtcdRules(tc.members, tc.onSystem, s, tc.accept)
			if got := strings.Join(refused, "; "); got != tc.refused {
				t.Errorf("%s, %s: refused %q, want %q", name, s, got, tc.refused)
			}
			if got := strings.Join(warn, "; "); got != tc.warn {
				t.Errorf("%s, %s: warned %q, want %q", name, s, got, tc.warn)
			}
		}
	}
}

func TestEtcdOnSystemDisk(t *testing.T) {
	t.Parallel()
	ephemeral, etcd := Volume{Disk: "sda", Label: "EPHEMERAL"}, Volume{Disk: "sdb", Label: "ETCD"}
	elsewhere := Volume{Disk: "sdb", Label: "EPHEMERAL"}
	for name, tc := range map[string]struct {
		system  string
		volumes []Volume
		want    bool
		err     string
	}{
		"EPHEMERAL on it":            {"sda", []Volume{ephemeral}, true, ""},
		"EPHEMERAL elsewhere":        {"sda", []Volume{elsewhere}, false, ""},
		"a volume of its own":        {"sda", []Volume{ephemeral, etcd}, false, ""},
		"a volume of its own, there": {"sdb", []Volume{elsewhere, etcd}, true, ""},
		"neither":                    {"sda", nil, false, "where etcd's data is can't be told: the machine shows neither a volume ETCD nor EPHEMERAL"},
		"two of them":                {"sda", []Volume{ephemeral, elsewhere}, false, "where etcd's data is can't be told: EPHEMERAL is on sda and on sdb"},
		"no system disk":             {"", []Volume{ephemeral}, false, "where etcd's data is can't be told: the machine does not name its system disk"},
	} {
		got, err := EtcdOnSystemDisk(Machine{SystemDisk: tc.system, Volumes: tc.volumes})
		if got != tc.want || message(err) != tc.err || err != nil && fault.KindOf(err) != fault.Refused {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}
