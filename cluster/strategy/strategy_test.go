package strategy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestDecideRepeatsWhatWillBeLost(t *testing.T) {
	t.Parallel()
	type row struct {
		strategy cluster.Strategy
		change   func(*observe.Found)
		accept   []string
		want     Decision
	}
	must.Each(t, map[string]row{
		"accepted": {cluster.Auto, nil, []string{"u-logs", "pv/pvc-1", "sda7"}, Decision{
			Strategy: cluster.Recreate, Why: "recreate: possible, every persistent disk can be carried over",
			WillLose: []string{
				"volume u-logs on the system disk will be lost", "partition sda7 on the system disk will be lost",
				"PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost",
			},
		}},
		"nothing is lost in place": {cluster.InPlace, nil, []string{"u-logs"}, Decision{Strategy: cluster.InPlace, Why: "in-place: as configured"}},
		"what is not there": {cluster.InPlace, nil, []string{"u-data", "u-typo"}, Decision{
			Strategy: cluster.InPlace, Why: "in-place: as configured",
			Notes: []string{
				"acceptLoss names u-data, which is on the disk sdb: with another system disk it stays there",
				"acceptLoss names u-typo, but nothing of that name is on its system disk",
			},
		}},
	}, func(t *testing.T, tc row) {
		w, f, o := staleNode()
		f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: "sda5", Disk: "sda", Label: "u-logs"}, cluster.Volume{Device: "sda7", Disk: "sda"})
		f.Local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1 (claim default/db-0)", Path: "/var/lib/local/pvc-1"}}
		w.Strategy, w.AcceptLoss = tc.strategy, tc.accept
		must.Equal(t, "got", tc.want, judge(w, f, o))
	})
}

func TestDecideTakesTheFirstThatIsPossible(t *testing.T) {
	t.Parallel()
	args := func(f *observe.Found) { f.VM.Config["args"] = "-x" }
	password := func(f *observe.Found) { f.VM.Config["cipassword"] = "**********" }
	snapshot := func(f *observe.Found) { f.Ties.Snapshots = []string{"before", "later"} }
	failed := func(f *observe.Found) { f.Node.FailedBuild = "3f2a3f2a3f2a3f2a" }
	const (
		argsText     = "its setting args can only be written by root@pam: use a resource mapping where there is one, or reimage"
		passwordText = "the VM has cipassword, which Proxmox never shows: remove it, or use reimage"
		snapshotText = "the VM has snapshots (before, later), whose disks can't leave it: delete them first"
		failedText   = "build 3f2a3f2a3f2a came back as the old system once, and is never tried again with the same image: " +
			"lock another version or other extensions, or use recreate or reimage"
	)
	noArgs := cluster.Obstacle{Text: argsText} // removing them makes another machine
	noPassword := cluster.Obstacle{Text: passwordText, Command: "qm set 9002 --delete cipassword"}
	noSnapshots := cluster.Obstacle{Text: snapshotText, Command: "qm delsnapshot 9002 before && qm delsnapshot 9002 later"}
	type row struct {
		asked  cluster.Strategy
		change []func(*observe.Found)
		want   Decision
	}
	must.Each(t, map[string]row{
		"auto, all possible": {cluster.Auto, nil, Decision{Strategy: cluster.Recreate, Why: "recreate: possible, every persistent disk can be carried over"}},
		"auto, no recreate": {cluster.Auto, []func(*observe.Found){args, password}, Decision{
			Strategy: cluster.Reimage, Why: "reimage: recreate is impossible (" + argsText + "; " + passwordText + ")",
			ToRecreate: []cluster.Obstacle{noArgs, noPassword},
		}},
		"auto, no reimage": {cluster.Auto, []func(*observe.Found){snapshot}, Decision{
			Strategy: cluster.InPlace, Why: "in-place: recreate and reimage are impossible (" + snapshotText + ")",
			ToRecreate: []cluster.Obstacle{noSnapshots},
		}},
		"auto, neither, for several reasons": {cluster.Auto, []func(*observe.Found){snapshot, args}, Decision{
			Strategy: cluster.InPlace, Why: "in-place: recreate and reimage are impossible (" + snapshotText + "), recreate also (" + argsText + ")",
			ToRecreate: []cluster.Obstacle{noSnapshots, noArgs},
		}},
		"auto, none": {cluster.Auto, []func(*observe.Found){snapshot, args, failed}, Decision{
			Strategy: cluster.Auto, Why: "no strategy is possible",
			Refused:    []string{"recreate, reimage: " + snapshotText, "recreate: " + argsText, "in-place: " + failedText},
			ToRecreate: []cluster.Obstacle{noSnapshots, noArgs},
		}},
		"a build that failed in place": {cluster.Auto, []func(*observe.Found){failed}, Decision{Strategy: cluster.Recreate, Why: "recreate: possible, every persistent disk can be carried over"}},
		"recreate":                     {cluster.Recreate, nil, Decision{Strategy: cluster.Recreate, Why: "recreate: as configured"}},
		"recreate, impossible": {cluster.Recreate, []func(*observe.Found){snapshot, args, failed}, Decision{
			Strategy: cluster.Recreate, Why: "recreate: as configured", Refused: []string{snapshotText, argsText},
			ToRecreate: []cluster.Obstacle{noSnapshots, noArgs},
		}},
		"reimage":              {cluster.Reimage, []func(*observe.Found){args, failed}, Decision{Strategy: cluster.Reimage, Why: "reimage: as configured"}},
		"reimage, impossible":  {cluster.Reimage, []func(*observe.Found){snapshot, args}, Decision{Strategy: cluster.Reimage, Why: "reimage: as configured", Refused: []string{snapshotText}}},
		"in-place":             {cluster.InPlace, []func(*observe.Found){snapshot, args}, Decision{Strategy: cluster.InPlace, Why: "in-place: as configured"}},
		"in-place, impossible": {cluster.InPlace, []func(*observe.Found){failed}, Decision{Strategy: cluster.InPlace, Why: "in-place: as configured", Refused: []string{failedText}}},
		"not read": {cluster.InPlace, []func(*observe.Found){func(f *observe.Found) { f.Machine, f.Errs = nil, []error{errors.New("no answer")} }}, Decision{
			Strategy: cluster.InPlace, Why: "it could not be read", Refused: []string{"its machine could not be read: no answer: bring it back first"},
		}},
		"no VM": {cluster.Auto, []func(*observe.Found){func(f *observe.Found) { f.VM = nil }}, Decision{
			Strategy: cluster.Auto, Why: "it could not be read", Refused: []string{"it has no VM"},
		}},
	}, func(t *testing.T, tc row) {
		w, f, o := staleNode()
		w.Strategy = tc.asked
		for _, change := range tc.change {
			change(&f)
		}
		must.Equal(t, "got", tc.want, judge(w, f, o))
	})
}

func TestParkedDisks(t *testing.T) {
	t.Parallel()
	_, f, _ := staleNode()
	f.VM.Config["scsi4"] = "fast:vm-200-disk-0,serial=held"
	disks := must.Get(f.VM.Disks())(t)
	for s, want := range map[cluster.Strategy]string{
		cluster.Recreate: "efidisk0 scsi0 scsi1 unused0 virtio3", cluster.Reimage: "scsi0", cluster.InPlace: "",
	} {
		keys := cluster.Each(parkedDisks(disks, 9002, s, "scsi0"), func(d cluster.Disk) string { return d.Key })
		must.Equal(t, string(s)+" parks", want, strings.Join(keys, " "))
	}
}

// judge proves the system disk and decides, as the planner does.
func judge(w cluster.Wanted, f observe.Found, o observe.Observation) Decision {
	if f.VM == nil || f.Machine == nil {
		return Decide(w, f, o, cluster.Disk{}, nil)
	}
	o.VMs[0] = *f.VM
	system, err := cluster.ProveSystemDisk(*f.VM, *f.Machine, w.SystemDisk)
	return Decide(w, f, o, system, err)
}

// staleNode is a worker with a system disk, two persistent disks of its own and no obstacle to any strategy.
func staleNode() (cluster.Wanted, observe.Found, observe.Observation) {
	vm := cluster.VM{ID: 9002, Name: "wk1", Host: "pve1", Running: true, Config: map[string]string{
		"smbios1":  "uuid=u-wk1",
		"scsi0":    "fast:vm-9002-disk-0,serial=sys,size=10G",
		"scsi1":    "fast:vm-9002-disk-1,serial=data,size=20G",
		"virtio3":  "bulk:9002/vm-9002-disk-2.raw,serial=more,size=90G",
		"unused0":  "fast:vm-9002-disk-7",
		"ide0":     "fast:vm-9002-cloudinit,media=cdrom",
		"ide2":     "isos:iso/debian.iso,media=cdrom",
		"efidisk0": "fast:vm-9002-disk-3,size=528K",
	}}
	m := cluster.Machine{
		MachineStanding: cluster.MachineStanding{UUID: "u-wk1"}, SystemDisk: "sda",
		Disks: []cluster.MachineDisk{{Device: "sda", Serial: "sys"}, {Device: "sdb", Serial: "data"}, {Device: "vda", Serial: "more"}},
		Volumes: []cluster.Volume{
			{Device: "sda1", Disk: "sda", Label: "EFI"},
			{Device: "sda2", Disk: "sda", Label: "META", Phase: "ready"},
			{Device: "sda3", Disk: "sda", Label: "STATE", Phase: "ready"},
			{Device: "sda4", Disk: "sda", Label: "EPHEMERAL", Phase: "ready"},
			{Device: "sdb1", Disk: "sdb", Label: "u-data", Phase: "ready"},
			{Device: "vda", Disk: "vda", FilesystemUUID: "f"},
		},
	}
	w := cluster.Wanted{Name: "wk1", Strategy: cluster.Auto, Build: cluster.Build{ID: "3f2a3f2a3f2a3f2a"}}
	f := observe.Found{Name: "wk1", VM: &vm, Machine: &m, Node: &cluster.KubeNode{Name: "wk1"}}
	observetest.Leased(&f)
	o := observe.Observation{
		VMs:      []cluster.VM{vm, {ID: 200, Name: "data", Host: "pve1", Config: map[string]string{}}},
		Storages: []cluster.Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin"}},
	}
	return w, f, o
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
		strategies    []cluster.Strategy
		accept        bool
		refused, warn string
	}{
		"three":                     {3, true, []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.PutBack, cluster.Rollback}, false, "", ""},
		"five":                      {5, true, []cluster.Strategy{cluster.Recreate}, false, "", ""},
		"two":                       {2, true, []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.PutBack, cluster.Rollback}, false, two, ""},
		"two, accepted":             {2, true, []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace}, true, "", twoDown},
		"one, data on system disk":  {1, true, []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback}, true, lost, ""},
		"one, data kept":            {1, true, []cluster.Strategy{cluster.InPlace, cluster.PutBack}, false, "", oneDown},
		"one, data on its own disk": {1, false, []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.Rollback}, false, "", oneDown},
	} {
		for _, s := range tc.strategies {
			refused, warn := EtcdRules(tc.members, tc.onSystem, false, s, tc.accept)
			must.Equal(t, fmt.Sprintf("%s, %s: refused", name, s), tc.refused, strings.Join(refused, "; "))
			must.Equal(t, fmt.Sprintf("%s, %s: warned", name, s), tc.warn, strings.Join(warn, "; "))
		}
	}
}

// TestEtcdRulesOfTypeInit: a control plane that would begin an etcd of its own keeps the data that it has.
func TestEtcdRulesOfTypeInit(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 5} {
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback, cluster.Remove} {
			if refused, _ := EtcdRules(n, true, true, s, true); len(refused) != 1 || !strings.Contains(refused[0], BeginsAlone) || !strings.Contains(refused[0], "controlplane") {
				t.Errorf("%d members, %s: %q", n, s, refused)
			}
			if refused, _ := EtcdRules(n, false, true, s, true); len(refused) > 0 {
				t.Errorf("%d members, %s, etcd on a disk of its own: %q", n, s, refused)
			}
		}
		for _, s := range []cluster.Strategy{cluster.InPlace, cluster.ApplyConfig, cluster.PutBack} {
			if refused, _ := EtcdRules(n, true, true, s, true); len(refused) > 0 {
				t.Errorf("%d members, %s: %q", n, s, refused)
			}
		}
	}
}

func TestEtcdOnSystemDisk(t *testing.T) {
	t.Parallel()
	ephemeral, etcd := cluster.Volume{Disk: "sda", Label: "EPHEMERAL"}, cluster.Volume{Disk: "sdb", Label: "ETCD"}
	elsewhere := cluster.Volume{Disk: "sdb", Label: "EPHEMERAL"}
	byConfig := func(kind cluster.VolumeType) []cluster.VolumeStatus {
		return []cluster.VolumeStatus{{ID: "ETCD", Type: kind, Phase: "ready"}}
	}
	for kind, want := range map[cluster.VolumeType]bool{cluster.PartitionVolume: false, cluster.DirectoryVolume: true} {
		m := cluster.Machine{SystemDisk: "sda", Volumes: []cluster.Volume{ephemeral, etcd}, VolumeStatuses: byConfig(kind)}
		must.Equal(t, "a partition ETCD whose volume is a "+string(kind), want, must.Get(EtcdOnSystemDisk(m))(t))
	}
	for name, tc := range map[string]struct {
		system  string
		volumes []cluster.Volume
		want    bool
		err     string
	}{
		"EPHEMERAL on it":            {"sda", []cluster.Volume{ephemeral}, true, ""},
		"EPHEMERAL elsewhere":        {"sda", []cluster.Volume{elsewhere}, false, ""},
		"a volume of its own":        {"sda", []cluster.Volume{ephemeral, etcd}, false, ""},
		"a volume of its own, there": {"sdb", []cluster.Volume{elsewhere, etcd}, true, ""},
		"neither":                    {"sda", nil, false, "where etcd's data is can't be determined: the machine shows no partition EPHEMERAL"},
		"two of them":                {"sda", []cluster.Volume{ephemeral, elsewhere}, false, "where etcd's data is can't be determined: EPHEMERAL is on sda and on sdb"},
		"no system disk":             {"", []cluster.Volume{ephemeral}, false, "where etcd's data is can't be determined: the machine does not name its system disk"},
	} {
		got, err := EtcdOnSystemDisk(cluster.Machine{SystemDisk: tc.system, Volumes: tc.volumes})
		must.Hold(t, got == tc.want && clustertest.Message(err) == tc.err && (err == nil || fault.KindOf(err) == fault.Refused),
			"%s: %t, %v", name, got, err)
	}
}

// TestWhatLiftsToRecreate: a command is printed only if the machine loses nothing by it for good.
func TestWhatLiftsToRecreate(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*cluster.Wanted, *observe.Found)
		want   []string
	}
	must.Each(t, map[string]row{
		"nothing in the way": {func(*cluster.Wanted, *observe.Found) {}, nil},
		"snapshots":          {func(_ *cluster.Wanted, f *observe.Found) { f.Ties.Snapshots = []string{"a", "it's"} }, []string{`qm delsnapshot 9002 a && qm delsnapshot 9002 'it'\''s'`}},
		"pending changes":    {func(_ *cluster.Wanted, f *observe.Found) { f.VM.Pending = []string{"cores", "memory"} }, []string{"qm set 9002 --revert cores,memory"}},
		"user data alone":    {setting("cicustom", "user=local:snippets/u.yaml"), []string{"qm set 9002 --delete cicustom"}},
		"user data and more": {func(_ *cluster.Wanted, f *observe.Found) {
			f.VM.Config["cicustom"], f.Ties.Snippets = "meta=local:snippets/m.yaml,user=local:snippets/u.yaml", []string{"local:snippets/m.yaml"}
		}, []string{"qm set 9002 --cicustom meta=local:snippets/m.yaml"}},
		"user data, and a file unseen": {setting("cicustom", "user=a:snippets/u,meta=a:snippets/m"), []string{"qm set 9002 --delete cicustom", "qm set 9002 --delete cicustom"}},
		"user data and a network":      {setting("cicustom", "user=a:snippets/u,network=a:snippets/n"), []string{"qm set 9002 --cicustom network=a:snippets/n", ""}},
		"a file unseen":                {setting("cicustom", "vendor=a:snippets/v"), []string{"qm set 9002 --delete cicustom"}},
		"an old boot order":            {setting("boot", "order=scsi0;scsi9"), []string{"qm set 9002 --boot order=scsi0"}},
		"a hook":                       {setting("hookscript", "local:snippets/h.pl"), []string{"qm set 9002 --delete hookscript"}},
		"arguments of QEMU":            {setting("args", "-x"), []string{""}},
		"a GPU": {setting("hostpci0", "01:00,pcie=1"), []string{
			`pvesh create /cluster/mapping/pci --id vm9002-hostpci0 --map "node=pve1,path=0000:01:00,$(cd /sys/bus/pci/devices/0000:01:00.0 && ` +
				`printf id=%s:%s,subsystem-id=%s:%s,iommugroup=%s $(cut -c3- vendor device subsystem_vendor subsystem_device) $(basename $(readlink iommu_group)))" && ` +
				`qm set 9002 --hostpci0 mapping=vm9002-hostpci0,pcie=1 && qm reboot 9002`,
		}},
		"a GPU with a ROM":     {setting("hostpci0", "0000:01:00.0,romfile=x.bin"), []string{""}},
		"two GPUs in one":      {setting("hostpci0", "host=0000:01:00.0;0000:02:00.0"), []string{""}},
		"a stick":              {setting("usb1", "host=10c4:ea60,usb3=1"), []string{"pvesh create /cluster/mapping/usb --id vm9002-usb1 --map node=pve1,id=10c4:ea60 && qm set 9002 --usb1 mapping=vm9002-usb1,usb3=1 && qm reboot 9002"}},
		"a socket for a stick": {setting("usb1", "host=1-4"), []string{""}},
		"a colleague": {
			func(_ *cluster.Wanted, f *observe.Found) {
				f.Ties.ACL = []cluster.ACLEntry{{Path: "/vms/9002", Kind: "token", Who: "a@pve!b", Role: "PVEVMUser", Propagate: true}, {Path: "/vms/9002", Kind: "user", Who: "c@pve", Role: "R", Propagate: false}}
			},
			[]string{"pveum acl delete /vms/9002 --tokens 'a@pve!b' --roles PVEVMUser", "pveum acl delete /vms/9002 --users c@pve --roles R"},
		},
		"an address of its own": {func(w *cluster.Wanted, f *observe.Found) {
			w.Build.Platform = "nocloud"
			observetest.Static(f)
			delete(f.VM.Config, "ide0")
		}, []string{"qm set 9002 --scsi30 fast:cloudinit"}},
		"a network file":    {setting("cicustom", "network=local:snippets/n.yaml"), []string{""}},
		"another processor": {setting("arch", "x86_64"), []string{""}},
		"a copy of a disk": {func(_ *cluster.Wanted, f *observe.Found) {
			f.VM.Config["scsi2"] = "fast:vm-9002-disk-8,serial=data,size=20G"
			f.VM.Config["scsihw"] = "virtio-scsi-single"
			f.Machine.Disks[1].BusPath = "/pci0000:00/0000:00:05.0/0000:01:02.0/virtio3/host3/target3:0:0/3:0:0:1"
			f.Machine.Disks = append(f.Machine.Disks, cluster.MachineDisk{Device: "sdc", BusPath: "/pci0000:00/0000:00:05.0/0000:01:03.0/virtio4/host4/target4:0:0/4:0:0:2"})
			f.Machine.Disks[1].Serial = ""
			f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: "sdc1", Disk: "sdc", Label: "u-data"})
		}, []string{"", "qm set 9002 --scsi2 fast:vm-9002-disk-8,size=20G,serial=9002-scsi2"}},
		"a lock, for a while": {func(_ *cluster.Wanted, f *observe.Found) { f.VM.Lock = "backup" }, []string{""}},
	}, func(t *testing.T, tc row) {
		w, f, o := staleNode()
		w.Build.Arch = "amd64"
		tc.change(&w, &f)
		got := cluster.Each(judge(w, f, o).ToRecreate, func(o cluster.Obstacle) string { return o.Command })
		must.Equal(t, "got", tc.want, got)
		w.Strategy = cluster.InPlace
		asked := judge(w, f, o).ToRecreate
		must.Hold(t, asked == nil, "in-place is asked for: %v", asked)
	})
}

// twin has the machine show the volumes of one disk at another device, as it does for a volume in two slots;
// Talos uses the first.
func twin(of, at string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Disks = append(f.Machine.Disks, cluster.MachineDisk{Device: at, Serial: at})
		for _, v := range f.Machine.Volumes {
			if v.Disk == of {
				v.Disk, v.Device, v.Phase, v.Mount = at, strings.Replace(v.Device, of, at, 1), "", ""
				f.Machine.Volumes = append(f.Machine.Volumes, v)
			}
		}
	}
}

func mounted(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
	f.Machine.Volumes[4].Mount = "/var/mnt/data"
}

// otherVM has VM 200 hold the value in that slot.
func otherVM(running bool, key, value string, config ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
		o.VMs[1].Running, o.VMs[1].Config[key] = running, value
		for i := 0; i < len(config); i += 2 {
			o.VMs[1].Config[config[i]] = config[i+1]
		}
	}
}

func TestOneVolumeInTwoSlots(t *testing.T) {
	t.Parallel()
	held := func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		w.Holder, f.VM.Config["scsi4"] = 200, "fast:vm-200-disk-0,serial=held"
		o.VMs[1].Config["scsi1"] = "fast:vm-200-disk-0,serial=held"
	}
	bothUse := ": both may be in use: find out whose it is, and take it out of the other VM while that is off"
	check(t, map[string]refusalCase{
		"the system disk": all(inTurn(set("boot", "order=scsi0"), set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"two volumes": all(inTurn(mounted, set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"), set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde")),
			"the volume of scsi0 is also scsi5, the volume of scsi1 is also scsi6: qm set 9002 --delete scsi5,scsi6 keeps the volume"),
		"in three slots": all(inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"), set("virtio6", "fast:vm-9002-disk-0,serial=sde"), twin("sda", "sde")),
			"the volume of scsi0 is also scsi5 and virtio6: qm set 9002 --delete scsi5,virtio6 keeps the volume"),
		"Talos uses the later one": all(inTurn(mounted, set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[4].Phase, f.Machine.Volumes[4].Mount, f.Machine.Volumes[6].Phase, f.Machine.Volumes[6].Mount = "", "", "ready", "/var/mnt/data"
		}), "the volume of scsi6 is also scsi1: qm set 9002 --delete scsi1 keeps the volume"),
		"none tells which is used": all(set("scsi6", "fast:vm-9002-disk-1,serial=data"),
			"the volume of scsi1 is also scsi6: qm shutdown 9002 && qm set 9002 --delete scsi6 && qm start 9002 keeps the volume"),
		"a raw volume": all(inTurn(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[4].Label = "r-osd"
		},
			set("scsi6", "fast:vm-9002-disk-1,serial=sde"), twin("sdb", "sde")),
			"the volume of scsi1 is also scsi6: qm shutdown 9002 && qm set 9002 --delete scsi6 && qm start 9002 keeps the volume"),
		"on a bus without hotplug": all(inTurn(set("sata1", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also sata1: qm shutdown 9002 && qm set 9002 --delete sata1 && qm start 9002 keeps the volume"),
		"the EFI variables": all(set("scsi7", "fast:vm-9002-disk-3"),
			"the volume of efidisk0 is also scsi7: qm shutdown 9002 && qm set 9002 --delete scsi7 && qm start 9002 keeps the volume"),
		"as a CD": all(inTurn(set("ide2", "fast:vm-9002-disk-1,media=cdrom")),
			"the volume of scsi1 is also ide2: qm shutdown 9002 && qm set 9002 --delete ide2 && qm start 9002 keeps the volume"),
		"detached": all(set("unused5", "fast:vm-9002-disk-1"), "the volume of scsi1 is also unused5: qm disk rescan --vmid 9002 keeps the volume"),
		"a protected VM": all(inTurn(set("protection", "1"), set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")),
			"the volume of scsi0 is also scsi5: qm set 9002 --protection 0 && qm set 9002 --delete scsi5 && qm set 9002 --protection 1 keeps the volume"),
		"a slot that is only pending": all(inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=later"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Pending = []string{"scsi5"}
			f.Machine.Disks[0].BusPath = "/devices/pci0000:00/0000:00:05.0/virtio2/host2/target2:0:0/2:0:0:0"
		}), "the volume of scsi0 is also scsi5: qm set 9002 --revert scsi5 keeps the volume"),
		"a slot that leaves with the next stop": all(inTurn(twin("sda", "sdd"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.VM.Pending = []string{"sata1"}
		}), "a drive that was taken out of the VM stays in it until it is off, and its machine still shows that volume twice: qm shutdown 9002 && qm start 9002"),
		"with file=":      all(inTurn(set("scsi5", "discard=on,file=fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd")), "the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"a linked clone":  all(inTurn(set("virtio4", "bulk:100/base-100-disk-0.raw/9002/vm-9002-disk-2.raw")), "the volume of virtio3 is also virtio4: qm shutdown 9002 && qm set 9002 --delete virtio4 && qm start 9002 keeps the volume"),
		"by its path":     all(inTurn(set("scsi5", "/dev/mapper/pve-vm--9002--disk--0,serial=sdd"), twin("sda", "sdd")), "the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"),
		"another VM, off": all(otherVM(false, "scsi5", "fast:vm-9002-disk-1"), "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"),
		"another VM, on": all(otherVM(true, "scsi5", "fast:vm-9002-disk-1"),
			"the volume of scsi1 is also scsi5 of VM 200: qm shutdown 200 && qm set 200 --delete scsi5 && qm start 200 keeps the volume"),
		"another VM, detached":       all(otherVM(true, "unused0", "fast:vm-9002-disk-1"), "the volume of scsi1 is also unused0 of VM 200: qm set 200 --delete unused0 keeps the volume"),
		"another VM boots from it":   all(otherVM(true, "scsi5", "fast:vm-9002-disk-1", "boot", "order=scsi5"), "the volume of scsi5 of VM 200 is also scsi1"+bothUse),
		"a copy that is off":         all(otherVM(false, "scsi5", "fast:vm-9002-disk-1", "boot", "order=scsi5"), "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"),
		"a disk of a VM that is on":  all(inTurn(set("scsi4", "fast:vm-200-disk-0,serial=x"), otherVM(true, "scsi1", "fast:vm-200-disk-0")), "the volume of scsi1 of VM 200 is also scsi4: qm shutdown 9002 && qm set 9002 --delete scsi4 && qm start 9002 keeps the volume"),
		"a holder's disk, once each": {change: held},
		"a holder that is on":        all(inTurn(held, otherVM(true, "scsi1", "fast:vm-200-disk-0"), used("scsi4", "held")), "the volume of scsi4 is also scsi1 of VM 200: qm shutdown 200 keeps the volume"),
		"a holder that names it twice": all(inTurn(held, otherVM(false, "unused0", "fast:vm-200-disk-0")),
			"the volume of scsi4 is also unused0 of VM 200: qm disk rescan --vmid 200 keeps the volume"),
		"a holder with two slots": all(inTurn(held, otherVM(false, "scsi2", "fast:vm-200-disk-0")), "the volume of scsi4 is also scsi2 of VM 200: qm set 200 --delete scsi2 keeps the volume"),
		"a third VM names a holder's": all(inTurn(held, func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs = append(o.VMs, cluster.VM{ID: 300, Host: "pve1", Config: map[string]string{"unused0": "fast:vm-200-disk-0"}})
		}), "the volume of scsi4 is also unused0 of VM 300: qm set 300 --delete unused0 keeps the volume"),
		"the same ISO":       {change: inTurn(set("ide2", "isos:iso/debian.iso,media=cdrom"), set("ide3", "isos:iso/debian.iso,media=cdrom"))},
		"cloud-init twice":   {change: inTurn(set("ide0", "fast:vm-9002-cloudinit,media=cdrom"), set("ide1", "fast:vm-9002-cloudinit,media=cdrom"))},
		"two empty drives":   {change: inTurn(set("ide2", "none,media=cdrom"), set("ide3", "none,media=cdrom"))},
		"namesakes on other": {change: otherVM(true, "scsi5", "bulk:vm-9002-disk-1")},
	})
}

// used has the machine show that Talos uses the drive with that serial.
func used(_, serial string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Disks = append(f.Machine.Disks, cluster.MachineDisk{Device: "sdh", Serial: serial})
		f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: "sdh1", Disk: "sdh", Label: "u-held", Phase: "ready", Mount: "/var/mnt/held"})
	}
}

func TestNoOtherStrategyTouchesAVolumeInTwoSlots(t *testing.T) {
	t.Parallel()
	_, f, o := staleNode()
	inTurn(set("scsi5", "fast:vm-9002-disk-0,serial=sdd"), twin("sda", "sdd"))(nil, &f, &o)
	c := Candidate{VM: *f.VM, Machine: *f.Machine, Found: f, Observation: o}
	want := []string{"the volume of scsi0 is also scsi5: qm set 9002 --delete scsi5 keeps the volume"}
	for name, got := range map[string][]string{
		"reshape": cluster.Texts(c.AgainstReshape()), "remove": c.AgainstRemove(), "unread": c.SeenFromProxmox()[cluster.InPlace],
	} {
		must.Equal(t, name, want, got)
	}
}
