package observe

import (
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/sim/must"
)

// reads returns one volume, whose ID names the configuration and the Talos that reads it.
type reads struct{ cluster.Maintenance }

func (reads) ConfigVolumes(text cluster.Secret, talos string) ([]cluster.ConfigVolume, error) {
	if string(text) == "bad" {
		return nil, errors.New("unreadable")
	}
	return []cluster.ConfigVolume{{ID: string(text) + " " + talos}}, nil
}

// TestConfigVolumes: volumes are read where the machine may get other ones, by whatever it boots with next.
func TestConfigVolumes(t *testing.T) {
	t.Parallel()
	same, staged := cluster.Configs{Stored: []byte("a: 1"), Active: []byte("a: 1")}, cluster.Configs{Stored: []byte("a: 2"), Active: []byte("a: 1")}
	file := &cluster.FoundFile{Volumes: []cluster.ConfigVolume{{ID: "u-data"}}}
	const wanted = "v1.14.1"
	for name, tc := range map[string]struct {
		has        cluster.Configs
		runs       string
		file       *cluster.FoundFile
		hidden     bool
		now, keeps string
		err        string
	}{
		"the same":       {has: same, runs: "v1.13.9"},
		"a file":         {has: same, runs: wanted, file: file, now: "a: 1 v1.14.1", keeps: "a: 1 v1.14.1"},
		"staged":         {has: staged, runs: "v1.13.9", now: "a: 1 v1.13.9", keeps: "a: 2 v1.14.1"},
		"an older Talos": {has: same, runs: "v1.15.0", now: "a: 1 v1.15.0", keeps: "a: 1 v1.14.1"},
		"unreadable":     {has: cluster.Configs{Stored: []byte("bad"), Active: []byte("a: 1")}, runs: wanted, now: "a: 1 v1.14.1", err: "unreadable"},
		"hidden":         {has: staged, runs: wanted, hidden: true},
	} {
		f := Found{File: tc.file, Machine: &cluster.Machine{Configs: tc.has, ConfigHidden: tc.hidden, RunningSystem: cluster.RunningSystem{TalosVersion: tc.runs}}}
		got := readConfigVolumes(reads{}, cluster.Wanted{Build: cluster.Build{TalosVersion: wanted}}, &f)
		if ids(got.Runs) != tc.now || ids(got.Keeps) != tc.keeps || (got.Err != nil) != (tc.err != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func ids(volumes []cluster.ConfigVolume) string {
	var out []string
	for _, v := range volumes {
		out = append(out, v.ID)
	}
	return strings.Join(out, ", ")
}

// TestSelectorsWhileDisksAreMissing: what matches nothing may match a disk that the VM is to get.
func TestSelectorsWhileDisksAreMissing(t *testing.T) {
	t.Parallel()
	none := cluster.DiskSelector{ID: "u-x", Document: "UserVolumeConfig x", Kind: cluster.ForPartition}
	vm := func(scsi1 string) cluster.VM {
		vm := cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G"}}
		if scsi1 != "" {
			vm.Config["scsi1"] = scsi1
		}
		return vm
	}
	for name, tc := range map[string]struct {
		vm      cluster.VM
		shape   cluster.Shape
		unknown bool
	}{
		"a disk is added":       {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Storage: "fast", SizeGiB: 20}}}, true},
		"a disk grows":          {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", SizeGiB: 20}}}, true},
		"another option":        {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Options: []string{"ssd=1"}}}}, false},
		"recast makes no such":  {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1"}}}, false},
		"only memory":           {vm(""), cluster.Shape{Settings: map[string]string{"memory": "4096"}}, false},
		"the VM is as it is to": {vm(""), cluster.Shape{}, false},
	} {
		differences := must.Get(shape.Compare(tc.vm, nil, tc.shape))(t)
		f := Found{VM: &tc.vm, Shape: differences, File: &cluster.FoundFile{Selectors: []cluster.DiskSelector{none}}}
		got := f.Selectors(func(string) bool { return false })
		if (got[0].Unknown != "") != tc.unknown || f.File.Selectors[0].Unknown != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestHasVolume: a reset machine shows which volumes it had by the labels of their partitions.
func TestHasVolume(t *testing.T) {
	t.Parallel()
	m := cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: "u-x"}}, VolumeStatuses: []cluster.VolumeStatus{{ID: "u-w", Location: "/dev/sdc"}, {ID: "u-y", Phase: "failed"}}}
	for id, want := range map[string]bool{"u-x": true, "u-w": true, "u-y": false, "u-z": false} {
		runs, reset := Found{Machine: &m}, Found{Blank: &cluster.BlankMachine{Machine: m}}
		must.Equal(t, id, []bool{want, want}, []bool{runs.HasVolume(id), reset.HasVolume(id)})
	}
	must.Equal(t, "a machine that does not answer has it", false, (&Found{}).HasVolume("u-x"))
}
