package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWhatLiftsToRecreate: a command is printed only where it takes nothing from the
// machine that the machine is without afterwards.
func TestWhatLiftsToRecreate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Wanted, *Found)
		want   []string
	}{
		"nothing in the way": {func(*Wanted, *Found) {}, nil},
		"snapshots":          {func(_ *Wanted, f *Found) { f.Ties.Snapshots = []string{"a", "it's"} }, []string{`qm delsnapshot 9002 a && qm delsnapshot 9002 'it'\''s'`}},
		"pending changes":    {func(_ *Wanted, f *Found) { f.VM.Pending = []string{"cores", "memory"} }, []string{"qm set 9002 --revert cores,memory"}},
		"user data alone":    {setting("cicustom", "user=local:snippets/u.yaml"), []string{"qm set 9002 --delete cicustom"}},
		"user data and more": {setting("cicustom", "meta=local:snippets/m.yaml,user=local:snippets/u.yaml"), []string{"qm set 9002 --cicustom meta=local:snippets/m.yaml"}},
		"an old boot order":  {setting("boot", "order=scsi0;scsi9"), []string{"qm set 9002 --boot order=scsi0"}},
		"a hook":             {setting("hookscript", "local:snippets/h.pl"), []string{"qm set 9002 --delete hookscript"}},
		"arguments of QEMU":  {setting("args", "-x"), []string{""}},
		"a GPU":              {setting("hostpci0", "0000:01:00.0"), []string{""}},
		"a network file":     {setting("cicustom", "network=local:snippets/n.yaml"), []string{""}},
		"another processor":  {setting("arch", "x86_64"), []string{""}},
		"a copy of a disk": {func(_ *Wanted, f *Found) {
			f.VM.Config["scsi2"] = "fast:vm-9002-disk-8,serial=data,size=20G"
			f.VM.Config["scsihw"] = "virtio-scsi-single"
			f.Machine.Disks[1].BusPath = "/pci0000:00/0000:00:05.0/0000:01:02.0/virtio3/host3/target3:0:0/3:0:0:1"
			f.Machine.Disks = append(f.Machine.Disks, MachineDisk{Device: "sdc", BusPath: "/pci0000:00/0000:00:05.0/0000:01:03.0/virtio4/host4/target4:0:0/4:0:0:2"})
			f.Machine.Disks[1].Serial = ""
			f.Machine.Volumes = append(f.Machine.Volumes, Volume{Device: "sdc1", Disk: "sdc", Label: "u-data"})
		}, []string{"", "qm set 9002 --scsi2 fast:vm-9002-disk-8,size=20G,serial=9002-scsi2"}},
		"a lock, for a while": {func(_ *Wanted, f *Found) { f.VM.Lock = "backup" }, []string{""}},
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
			w.Strategy = InPlace
			if asked := judge(w, f, o).ToRecreate; asked != nil {
				t.Errorf("in-place is asked for: %v", asked)
			}
		})
	}
}
