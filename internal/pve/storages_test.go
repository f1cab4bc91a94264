package pve

import (
	"errors"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
)

func TestStorage(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/storage", data(`[{"storage":"isos","type":"cephfs","content":"iso,vztmpl","shared":1,"active":1,"enabled":1,"avail":1.5e+15,"used":1,"total":2e15},
			{"storage":"off","content":"images","shared":0,"active":0,"enabled":1},
			{"storage":"others","content":"images","shared":0,"active":0,"enabled":0}]`))
		pve1.On("GET /nodes/pve1/storage/isos/content?content=iso", data(`[{"volid":"isos:iso/a.iso","size":1048576},{"volid":"isos:iso/b.iso","size":"7"}]`))
		pve1.On("GET /nodes/pve1/storage/fast/content", data(`[{"volid":"fast:101/vm-101-disk-0.raw","size":1048576,"vmid":101}]`))
		pve1.On("GET /nodes/pve1/storage/nosuch/content?content=iso", raw("500 storage 'nosuch' does not exist", ""))
		got, err := c.Storage(t.Context(), "pve1", "isos")
		must(t, err)
		want := images.StorageInfo{Active: true, Shared: true, Content: []string{"iso", "vztmpl"}, FreeBytes: 1_500_000_000_000_000}
		same(t, "storage", want, got)
		if got, err := c.Storage(t.Context(), "pve1", "off"); err != nil || got.Active {
			t.Errorf("inactive storage: %+v, error %v", got, err)
		}
		for _, storage := range []string{"nosuch", "others"} {
			if _, err := c.Storage(t.Context(), "pve1", storage); !errors.Is(err, images.ErrNoStorage) {
				t.Errorf("%s: %v", storage, err)
			}
		}
		isos := map[string]string{"a.iso": "1048576 true <nil>", "b.iso": "7 true <nil>", "c.iso": "0 false <nil>"}
		for name, want := range isos {
			size, found, err := c.ISO(t.Context(), "pve1", "isos", name)
			if got := fmt.Sprint(size, found, err); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		if _, found, err := c.ISO(t.Context(), "pve1", "nosuch", "a.iso"); found || !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("ISO on an unknown storage: %v %v", found, err)
		}
		volumes := map[string]bool{"isos:iso/a.iso": true, "isos:iso/c.iso": false, "fast:101/vm-101-disk-0.raw": true, "fast:vm-101-disk-0": false}
		for volid, want := range volumes {
			if got, err := c.HasVolume(t.Context(), "pve1", volid); err != nil || got != want {
				t.Errorf("%s: %v, error %v", volid, got, err)
			}
		}
		if _, err := c.HasVolume(t.Context(), "pve1", "none"); err == nil {
			t.Error(`"none" passes for a volume`)
		}
	})
}

func TestOwnedVolumes(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/storage/fast/content?content=images&vmid=101",
			data(`[{"volid":"fast:vm-101-disk-1","vmid":"101","size":1},{"volid":"fast:vm-101-disk-0","vmid":101,"size":"2"}]`),
			data(`[]`), raw("500 storage 'fast' does not exist", ""))
		for _, want := range [][]string{{"fast:vm-101-disk-0", "fast:vm-101-disk-1"}, nil} {
			got, err := c.OwnedVolumes(t.Context(), "pve1", "fast", 101)
			must(t, err)
			same(t, "volumes", want, got)
		}
		if got, err := c.OwnedVolumes(t.Context(), "pve1", "fast", 101); err == nil {
			t.Errorf("lists %v of a missing storage", got)
		}
	})
}

func TestStorages(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /storage", data(`[
			{"storage":"a-dir","type":"dir","path":"/srv"},
			{"storage":"b-full","type":"dir","preallocation":"full"},
			{"storage":"c-metadata","type":"nfs","shared":1,"preallocation":"metadata"},
			{"storage":"d-lvm","type":"lvm","vgname":"vg0","saferemove":1},
			{"storage":"e-thin","type":"lvmthin","vgname":"pve","thinpool":"data"},
			{"storage":"f-zfs","type":"zfspool","pool":"rpool/data"},
			{"storage":"g-sparse","type":"zfspool","pool":"rpool/data","sparse":1},
			{"storage":"h-ceph","type":"rbd","shared":1},
			{"storage":"i-ceph","type":"rbd","shared":1,"pool":"vms","monhost":"10.0.0.1 10.0.0.2"},
			{"storage":"j-plugin","type":"linstor","shared":"1"}]`), raw("595 No route to host", ""))
		got, err := c.Storages(t.Context())
		must(t, err)
		want := []cluster.Storage{
			{Name: "a-dir", Type: "dir", Dir: "/srv"},
			{Name: "b-full", Type: "dir", Thick: true},
			{Name: "c-metadata", Type: "nfs", Shared: true},
			{Name: "d-lvm", Type: "lvm", Thick: true, Pool: "vg0"},
			{Name: "e-thin", Type: "lvmthin", Pool: "pve/data"},
			{Name: "f-zfs", Type: "zfspool", Thick: true, Pool: "zfs rpool/data"},
			{Name: "g-sparse", Type: "zfspool", Pool: "zfs rpool/data"},
			{Name: "h-ceph", Type: "rbd", Shared: true, Pool: "rbd rbd of the hosts' own Ceph"},
			{Name: "i-ceph", Type: "rbd", Shared: true, Pool: "rbd vms of 10.0.0.1 10.0.0.2"},
			{Name: "j-plugin", Type: "linstor", Shared: true, Thick: true},
		}
		same(t, "storages", want, got)
		if got, err := c.Storages(t.Context()); err == nil {
			t.Errorf("lists %v without an answer", got)
		}
	})
}

func TestRoom(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/storage?content=images", data(`[
			{"storage":"thin","type":"lvmthin","content":"images","active":1,"enabled":1,"total":100,"used":40,"avail":60,"used_fraction":0.4},
			{"storage":"nas","type":"nfs","active":0,"enabled":1,"total":0,"used":0,"avail":0},
			{"storage":"fs","type":"cephfs","active":1,"total":2e15,"avail":"1.5e+15"}]`))
		pve1.On("GET /storage", data(`[{"storage":"fs","type":"cephfs","monhost":"10.0.0.1"}]`))
		pve1.On("GET /nodes/pve1/disks/lvmthin", data(`[{"lv":"data","vg":"pve","lv_size":100,"used":40,"metadata_size":10,"metadata_used":1}]`))
		pve1.On("GET /nodes/pve2/storage?content=images", data(`[{"storage":"thin","type":"lvmthin","active":1,"total":100,"avail":60}]`))
		pve1.On("GET /nodes/pve2/disks/lvmthin", raw("500 got no thin pools", ""))
		got, err := c.Room(t.Context(), "pve1")
		must(t, err)
		want := cluster.Room{
			Storages: []cluster.StorageRoom{
				{Name: "fs", Active: true, Total: 2e15, Free: 15e14},
				{Name: "nas"},
				{Name: "thin", Active: true, Total: 100, Free: 60},
			},
			ThinPools: []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 40, MetaSize: 10, MetaUsed: 1}},
		}
		same(t, "room", want, got)
		if got, err := c.Room(t.Context(), "pve2"); err != nil || got.ErrPools == nil || len(got.Storages) != 1 {
			t.Errorf("thin pools that can't be read: %+v, error %v", got, err)
		}
	})
}

// TestRoomOnCeph: only storages on the hosts' own Ceph are judged by it, and only what lets reads or writes wait blocks
// them.
func TestRoomOnCeph(t *testing.T) {
	t.Parallel()
	const off = "the Proxmox hosts' Ceph does not say how it is"
	health := func(checks string) route {
		return data(`{"health":{"status":"HEALTH_WARN","checks":{` + checks + `}}}`)
	}
	check := func(code, severity, message string) string {
		return `"` + code + `":{"severity":"` + severity + `","summary":{"message":"` + message + `","count":1},"detail":[],"muted":false}`
	}
	said := func(text string) string { return "the Proxmox hosts' Ceph lets reads or writes wait: " + text }
	notes := func(texts ...string) (all []string) {
		for _, text := range texts {
			all = append(all, "the Proxmox hosts' Ceph says "+text)
		}
		return all
	}
	cases := map[string]struct {
		answer    route
		elsewhere bool // it is not the hosts' own
		notOurs   bool // nothing is known
		blocked   string
		notes     []string
	}{
		"healthy":         {answer: health("")},
		"other warnings":  {answer: health(check("MON_DOWN", "HEALTH_WARN", "1/3 mons down") + "," + check("OSDMAP_FLAGS", "HEALTH_WARN", "noout,noscrub flag(s) set"))},
		"inactive PGs":    {answer: health(check("PG_AVAILABILITY", "HEALTH_WARN", "Reduced data availability: 3 pgs inactive")), blocked: said("PG_AVAILABILITY (Reduced data availability: 3 pgs inactive)")},
		"unfound objects": {answer: health(check("OBJECT_UNFOUND", "HEALTH_WARN", "1/9 objects unfound")), blocked: said("OBJECT_UNFOUND (1/9 objects unfound)")},
		"full":            {answer: health(check("OSD_FULL", "HEALTH_ERR", "1 full osd(s)") + "," + check("POOL_FULL", "HEALTH_ERR", "1 pool(s) full")), blocked: said("OSD_FULL (1 full osd(s)), POOL_FULL (1 pool(s) full)")},
		"paused":          {answer: health(check("OSDMAP_FLAGS", "HEALTH_WARN", "pauserd,pausewr,noout flag(s) set")), blocked: said("OSDMAP_FLAGS (pauserd,pausewr,noout flag(s) set)")},
		"the flag full":   {answer: health(check("OSDMAP_FLAGS", "HEALTH_ERR", "full flag(s) set")), blocked: said("OSDMAP_FLAGS (full flag(s) set)")},
		"nearly full":     {answer: health(check("OSD_NEARFULL", "HEALTH_WARN", "1 nearfull osd(s)")), notes: notes("OSD_NEARFULL (1 nearfull osd(s))")},
		"no recovery":     {answer: health(check("OSDMAP_FLAGS", "HEALTH_WARN", "norecover flag(s) set")), notes: notes("OSDMAP_FLAGS (norecover flag(s) set)")},
		"another error":   {answer: health(check("PG_DAMAGED", "HEALTH_ERR", "1 pg inconsistent")), notes: notes("PG_DAMAGED (1 pg inconsistent)")},
		"no health":       {answer: data(`{}`), blocked: off},
		"not installed":   {answer: raw("500 binary not installed: /usr/bin/ceph-mon", ""), notOurs: true},
		"not set up":      {answer: raw("500 pveceph configuration not initialized - missing '/etc/pve/ceph.conf'", ""), notOurs: true},
		"no monitor":      {answer: raw("500 rados_connect failed - Connection timed out", ""), blocked: off + " (GET /nodes/pve1/ceph/status: 500 rados_connect failed - Connection timed out)"},
		"another Ceph":    {answer: raw("500 it was asked", ""), elsewhere: true, notOurs: true},
		"not for the token": {answer: raw("403 Permission check failed (/, Sys.Audit|Datastore.Audit)", ""), notes: []string{
			"whether the Proxmox hosts' Ceph takes reads and writes can't be determined: the token needs Sys.Audit or Datastore.Audit on /",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
				pve1.On("GET /nodes/pve1/storage?content=images", data(`[{"storage":"dir","type":"dir","active":1,"total":100,"avail":60},{"storage":"vms","type":"rbd","active":1,"total":100,"avail":60}]`))
				monitors := ""
				if tc.elsewhere {
					monitors = `,"monhost":"10.0.0.1 10.0.0.2"`
				}
				pve1.On("GET /storage", data(`[{"storage":"vms","type":"rbd"`+monitors+`},{"storage":"dir","type":"dir"}]`))
				pve1.On("GET /nodes/pve1/ceph/status", tc.answer)
				got, err := c.Room(t.Context(), "pve1")
				must(t, err)
				want := []cluster.StorageRoom{
					{Name: "dir", Active: true, Total: 100, Free: 60},
					{Name: "vms", Active: true, Total: 100, Free: 60, Ceph: !tc.notOurs, Blocked: tc.blocked, Notes: tc.notes},
				}
				same(t, "storages", want, got.Storages)
			})
		})
	}
}
