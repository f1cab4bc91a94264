package strategy

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
)

// TestWhatLiftsToRecreate: a command is printed only if the machine loses nothing by it for good.
func TestWhatLiftsToRecreate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*cluster.Wanted, *observe.Found)
		want   []string
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, f, o := staleNode()
			w.Build.Arch = "amd64"
			tc.change(&w, &f)
			var got []string
			for _, o := range judge(w, f, o).ToRecreate {
				got = append(got, o.Command)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			w.Strategy = cluster.InPlace
			if asked := judge(w, f, o).ToRecreate; asked != nil {
				t.Errorf("in-place is asked for: %v", asked)
			}
		})
	}
}
