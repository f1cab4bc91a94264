package pve

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
)

const (
	freed   = `{"digest":"after","scsi0":"fast:101/vm-101-disk-0.raw,size=10G"}`
	content = "GET /nodes/pve1/storage/fast/content"
)

var disks101 = cluster.VM{
	ID: 101, Name: "wk1", Host: "pve1", Digest: "before",
	Config: map[string]string{
		"scsi0": "fast:101/vm-101-disk-0.raw,size=10G", "scsi1": "fast:101/vm-101-disk-1.raw,size=2G", "unused0": "fast:101/vm-101-disk-2.raw",
		"scsi2": "data:200/vm-200-disk-0.raw", "ide2": "isos:iso/x.iso,media=cdrom", "ide0": "none,media=cdrom",
	},
}

func TestFreeDisk(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		key     string
		task    string
		config  string
		pending string
		listed  string
		want    string
	}{
		"drive":    {key: "scsi1", want: "<nil>"},
		"detached": {key: "unused0", want: "<nil>"},
		"task fails": {
			key: "scsi1", task: "unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)",
			want: "task qmdestroy 101 on pve1: unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)",
		},
		"key is still there": {
			key: "scsi1", config: `{"scsi1":"fast:101/vm-101-disk-1.raw,size=2G"}`,
			want: `fast:101/vm-101-disk-1.raw is not freed: it is scsi1 of VM 101 "wk1" on pve1`,
		},
		"key holds another volume": {
			key: "scsi1", config: `{"scsi1":"fast:101/vm-101-disk-9.raw,size=2G"}`,
			want: `fast:101/vm-101-disk-1.raw is freed, but scsi1 of VM 101 "wk1" on pve1 is there again`,
		},
		"detached instead": {
			key: "scsi1", config: `{"unused1":"fast:101/vm-101-disk-1.raw"}`,
			want: `fast:101/vm-101-disk-1.raw is not freed: it is unused1 of VM 101 "wk1" on pve1`,
		},
		"pending": {
			key: "scsi1", pending: `[{"key":"scsi1","value":"fast:101/vm-101-disk-1.raw","delete":2}]`,
			want: `fast:101/vm-101-disk-1.raw is not freed: the removal of scsi1 from VM 101 "wk1" on pve1 is pending`,
		},
		"storage keeps it": {
			key: "scsi1", listed: `[{"volid":"fast:101/vm-101-disk-1.raw","size":1}]`,
			want: `fast:101/vm-101-disk-1.raw is not freed: no drive of VM 101 "wk1" on pve1 holds it, but its storage still has it`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.Node(t, "pve1")
				var params map[string]string
				pve1.On("POST /nodes/pve1/qemu/101/config", sent(&params, data(`"`+testUPID+`"`)))
				pve1.On(logPath, data(`[]`))
				pve1.On(statusPath, running, stopped(cmp.Or(tc.task, "OK")))
				pve1.On(onVM101+"/config", data(cmp.Or(tc.config, freed)))
				pve1.On(onVM101+"/pending", data(cmp.Or(tc.pending, "[]")))
				pve1.On(content, data(cmp.Or(tc.listed, `[{"volid":"fast:101/vm-101-disk-0.raw","size":1}]`)))
				if err := s.client(t, "pve1").FreeDisk(t.Context(), disks101, tc.key); fmt.Sprint(err) != tc.want {
					t.Errorf("error is %v\nwant     %s", err, tc.want)
				}
				if diff := gocmp.Diff(map[string]string{"delete": tc.key, "force": "1", "digest": "before"}, params); diff != "" {
					t.Errorf("parameters (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestFreeDiskRefuses(t *testing.T) {
	t.Parallel()
	undigested := disks101
	undigested.Digest = ""
	cases := map[string]struct {
		vm      cluster.VM
		key     string
		want    string
		refused bool
	}{
		"another VM's volume": {disks101, "scsi2", `scsi2 of VM 101 "wk1" on pve1: data:200/vm-200-disk-0.raw is not a volume of this VM, so it is not freed`, true},
		"ISO":                 {disks101, "ide2", `ide2 of VM 101 "wk1" on pve1: isos:iso/x.iso is not a volume of this VM, so it is not freed`, true},
		"empty drive":         {disks101, "ide0", `ide0 of VM 101 "wk1" on pve1: none is not a volume of this VM, so it is not freed`, true},
		"no such drive":       {disks101, "scsi7", `free a disk of VM 101 "wk1" on pve1: scsi7: no volume in ""`, false},
		"no drive":            {disks101, "name", `free a disk of VM 101 "wk1" on pve1: "name" is not a drive`, false},
		"no digest":           {undigested, "scsi1", `VM 101 "wk1" on pve1 was read without a digest, so a change could overwrite someone else's`, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.Node(t, "pve1")
				err := s.client(t, "pve1").FreeDisk(t.Context(), tc.vm, tc.key)
				if fmt.Sprint(err) != tc.want || (fault.KindOf(err) == fault.Refused) != tc.refused {
					t.Errorf("error is %v\nwant     %s", err, tc.want)
				}
				if got := pve1.Requests(); len(got) > 0 {
					t.Errorf("sent %q", got)
				}
			})
		})
	}
}

func TestFreeDiskThatIsRefusedIsTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("POST /nodes/pve1/qemu/101/config", raw("400 Parameter verification failed.",
			`{"errors":{"scsi1":"unable to apply pending change scsi1 : unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)\n"},"data":null}`))
		pve1.On(onVM101+"/config", data(`{"digest":"after"}`))
		pve1.On(onVM101+"/pending", data(`[{"key":"scsi1","delete":2}]`))
		var params map[string]string
		pve1.On("PUT /nodes/pve1/qemu/101/config", sent(&params, data("null")))
		err := s.client(t, "pve1").FreeDisk(t.Context(), disks101, "scsi1")
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Params["scsi1"] == "" {
			t.Errorf("error is %v", err)
		}
		if diff := gocmp.Diff(map[string]string{"revert": "scsi1", "digest": "after"}, params); diff != "" {
			t.Errorf("taken back (-want +got):\n%s", diff)
		}
	})
}
