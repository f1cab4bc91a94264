package pve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestStorage(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/storage", data(`[{"storage":"isos","type":"cephfs","content":"iso,vztmpl","shared":1,"active":1,"enabled":1,"avail":1.5e+15,"used":1,"total":2e15},
			{"storage":"off","content":"images","shared":0,"active":0,"enabled":1},
			{"storage":"others","content":"images","shared":0,"active":0,"enabled":0}]`))
		pve1.On("GET /nodes/pve1/storage/isos/content?content=iso", data(`[{"volid":"isos:iso/a.iso","size":1048576,"ctime":946684800},{"volid":"isos:iso/b.iso","size":"7"}]`))
		pve1.On("GET /nodes/pve1/storage/fast/content", data(`[{"volid":"fast:101/vm-101-disk-0.raw","size":1048576,"vmid":101}]`))
		pve1.On("GET /nodes/pve1/storage/nosuch/content?content=iso", raw("500 storage 'nosuch' does not exist", ""))
		got := must.Get(c.Storage(t.Context(), "pve1", "isos"))(t)
		want := images.StorageInfo{Active: true, Shared: true, Content: []string{"iso", "vztmpl"}, FreeBytes: 1_500_000_000_000_000}
		must.Equal(t, "storage", want, got)
		must.Equal(t, "off is active", false, must.Get(c.Storage(t.Context(), "pve1", "off"))(t).Active)
		for _, storage := range []string{"nosuch", "others"} {
			must.FailIs(t, must.Err(c.Storage(t.Context(), "pve1", storage)), images.ErrNoStorage)
		}
		for name, want := range map[string]string{"a.iso": "1048576 true <nil>", "b.iso": "7 true <nil>", "c.iso": "0 false <nil>"} {
			file, found, err := c.ISO(t.Context(), "pve1", "isos", name)
			must.Equal(t, name, want, fmt.Sprint(file.SizeBytes, found, err))
		}
		_, found, err := c.ISO(t.Context(), "pve1", "nosuch", "a.iso")
		must.Hold(t, !found && errors.Is(err, images.ErrNoStorage), "ISO on an unknown storage: %v %v", found, err)
		volumes := map[string]bool{"isos:iso/a.iso": true, "isos:iso/c.iso": false, "fast:101/vm-101-disk-0.raw": true, "fast:vm-101-disk-0": false}
		for volid, want := range volumes {
			must.Equal(t, volid, want, must.Get(c.HasVolume(t.Context(), "pve1", volid))(t))
		}
		at, found, err := c.VolumeChanged(t.Context(), "pve1", "isos:iso/a.iso")
		must.Equal(t, "changed", fmt.Sprint(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), true, nil), fmt.Sprint(at, found, err))
		must.Hold(t, must.Err(c.HasVolume(t.Context(), "pve1", "none")) != nil, "%v", `"none" passes for a volume`)
	})
}

func TestOwnedVolumes(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/storage/fast/content?content=images&vmid=101",
			data(`[{"volid":"fast:vm-101-disk-1","vmid":"101","size":1},{"volid":"fast:vm-101-disk-0","vmid":101,"size":"2"}]`),
			data(`[]`), raw("500 storage 'fast' does not exist", ""))
		for _, want := range [][]string{{"fast:vm-101-disk-0", "fast:vm-101-disk-1"}, nil} {
			must.Equal(t, "volumes", want, must.Get(c.OwnedVolumes(t.Context(), "pve1", "fast", 101))(t))
		}
		must.Hold(t, must.Err(c.OwnedVolumes(t.Context(), "pve1", "fast", 101)) != nil, "lists volumes of a missing storage")
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
		got := must.Get(c.Storages(t.Context()))(t)
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
		must.Equal(t, "storages", want, got)
		must.Hold(t, must.Err(c.Storages(t.Context())) != nil, "lists storages without an answer")
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
		got := must.Get(c.Room(t.Context(), "pve1"))(t)
		want := cluster.Room{
			Storages: []cluster.StorageRoom{
				{Name: "fs", Active: true, Total: 2e15, Free: 15e14},
				{Name: "nas"},
				{Name: "thin", Active: true, Total: 100, Free: 60},
			},
			ThinPools: []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 40, MetaSize: 10, MetaUsed: 1}},
		}
		must.Equal(t, "room", want, got)
		got = must.Get(c.Room(t.Context(), "pve2"))(t)
		must.Hold(t, got.ErrPools != nil && len(got.Storages) == 1, "thin pools that can't be read: %+v", got)
	})
}

// TestRoomOnCeph: only storages on the hosts' own Ceph are judged by it, and only what lets reads or writes wait blocks
// them.
func TestRoomOnCeph(t *testing.T) {
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
	type row struct {
		answer    route
		elsewhere bool // it is not the hosts' own
		notOurs   bool // nothing is known
		blocked   string
		notes     []string
	}
	onEachNode(t, map[string]row{
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
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("GET /nodes/pve1/storage?content=images", data(`[{"storage":"dir","type":"dir","active":1,"total":100,"avail":60},{"storage":"vms","type":"rbd","active":1,"total":100,"avail":60}]`))
		monitors := ""
		if tc.elsewhere {
			monitors = `,"monhost":"10.0.0.1 10.0.0.2"`
		}
		pve1.On("GET /storage", data(`[{"storage":"vms","type":"rbd"`+monitors+`},{"storage":"dir","type":"dir"}]`))
		pve1.On("GET /nodes/pve1/ceph/status", tc.answer)
		got := must.Get(c.Room(t.Context(), "pve1"))(t)
		want := []cluster.StorageRoom{
			{Name: "dir", Active: true, Total: 100, Free: 60},
			{Name: "vms", Active: true, Total: 100, Free: 60, Ceph: !tc.notOurs, Blocked: tc.blocked, Notes: tc.notes},
		}
		must.Equal(t, "storages", want, got.Storages)
	})
}

const (
	downloadPath = "POST /nodes/pve1/storage/isos/download-url"
	isoLink      = "https://factory.talos.dev/image/abc/v1.13.9/nocloud-amd64.iso"
)

func TestMayDownload(t *testing.T) {
	const template = "Datastore.AllocateTemplate"
	type row struct {
		storage, node, root string // privileges held there
		want                string
	}
	onEachNode(t, map[string]row{
		"Sys.AccessNetwork":        {storage: template, node: "Sys.AccessNetwork"},
		"the old way":              {storage: template, node: "Sys.Console", root: "Sys.Audit Sys.Modify"},
		"Sys.Modify alone":         {storage: template, root: "Sys.Modify", want: "the token has no Sys.AccessNetwork on /nodes/pve1"},
		"Sys.Audit alone":          {storage: template, root: "Sys.Audit", want: "the token has no Sys.AccessNetwork on /nodes/pve1"},
		"nothing on the storage":   {storage: "Datastore.Audit", node: "Sys.AccessNetwork", want: "the token has no Datastore.AllocateTemplate on /storage/isos"},
		"a token that has nothing": {want: "the token has no Datastore.AllocateTemplate on /storage/isos"},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		for path, privileges := range map[string]string{"/storage/isos": tc.storage, "/nodes/pve1": tc.node, "/": tc.root} {
			held := "{}"
			if privileges != "" {
				held = `{"` + path + `":{"` + strings.ReplaceAll(privileges, " ", `":0,"`) + `":1}}`
			}
			pve1.On("GET /access/permissions?path="+url.QueryEscape(path), data(held))
		}
		why, err := c.MayDownload(t.Context(), "pve1", "isos")
		must.Hold(t, why == tc.want && err == nil, "why not: %q, want %q; %v", why, tc.want, err)
	})
}

func TestMayDownloadWithoutAnAnswer(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		must.Hold(t, must.Err(c.MayDownload(t.Context(), "pve1", "isos")) != nil, "no error although no host answers")
	})
}

func TestURLSize(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/query-url-metadata?"+url.Values{"url": {isoLink}, "verify-certificates": {"1"}}.Encode(),
			data(`{"filename":"nocloud-amd64.iso","size":1048576,"mimetype":"application/octet-stream"}`), data(`{"size":"7"}`), data(`{"filename":"x"}`),
			raw("500 invalid server response: '404 Not Found'", ""))
		for _, want := range []int64{1048576, 7, 0} {
			must.Equal(t, "bytes", want, must.Get(c.URLSize(t.Context(), "pve1", isoLink))(t))
		}
		must.Fail(t, must.Err(c.URLSize(t.Context(), "pve1", isoLink)), "invalid server response: '404 Not Found'")
	})
}

func TestDownload(t *testing.T) {
	const (
		upid   = "UPID:pve1:0000ABCD:00012345:386D4380:download:recast-1.iso:recast@pve!roll:"
		tasks  = "GET /nodes/pve1/tasks?limit=500&source=all&typefilter=download"
		stored = `[{"volid":"isos:iso/recast-1.iso","size":7}]`

		mismatch = "checksum mismatch: got 'aa' != expect 'ab'"
	)
	started := data(`"` + upid + `"`)
	one := []route{started}
	d := images.Download{Host: "pve1", Storage: "isos", Name: "recast-1.iso", URL: isoLink, SizeBytes: 7, SHA256: "ab"}
	type row struct {
		answers           []route
		tasks, isos, exit string
		is, not           error
		fails             string
		sent              int
	}
	onEachNode(t, map[string]row{
		"done":    {answers: []route{started}, exit: "OK", sent: 1},
		"refused": {answers: []route{raw("403 Permission check failed", "")}, fails: "403 Permission check failed", sent: 1},
		"wget fails": {
			answers: one, exit: "download failed: command '/usr/bin/wget' failed: exit code 4", not: images.ErrOtherContent,
			fails: "task download recast-1.iso on pve1: download failed", sent: 1,
		},
		"other bytes":                {answers: one, exit: mismatch, is: images.ErrOtherContent, fails: "it has another checksum", sent: 1},
		"another file is there":      {answers: one, exit: mismatch + ", aborting", is: images.ErrOtherContent, fails: "aborting", sent: 1},
		"its task is found":          {answers: []route{lost}, tasks: `[{"upid":"` + upid + `"}]`, isos: stored, exit: "OK", sent: 1},
		"the file shows":             {answers: []route{lost}, isos: stored, sent: 1},
		"nothing shows: once more":   {answers: []route{lost, started}, exit: "OK", sent: 2},
		"its host does not answer":   {answers: []route{raw("595 No route to host", "")}, is: cluster.ErrLostAnswer, fails: "595 No route to host", sent: 2},
		"a file that it has not got": {answers: []route{lost, started}, isos: `[{"volid":"isos:iso/recast-1.iso","size":6}]`, exit: "OK", sent: 2},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		var form map[string]string
		answers := make([]route, len(tc.answers))
		for i, then := range tc.answers {
			answers[i] = sent(&form, then)
		}
		pve1.On(downloadPath, answers...)
		pve1.On(tasks, data(cmp.Or(tc.tasks, "[]")))
		pve1.On("GET /nodes/pve1/status", data(`{"uptime":745}`))
		pve1.On(isosPath, data(cmp.Or(tc.isos, "[]")))
		pve1.On("GET /nodes/pve1/tasks/"+url.PathEscape(upid)+"/status", running, stopped(tc.exit))
		pve1.On("GET /nodes/pve1/tasks/"+url.PathEscape(upid)+"/log?limit=500", data(`[]`))
		err := c.Download(t.Context(), d)
		wantError(t, err, tc.is, tc.fails)
		must.Hold(t, tc.not == nil || !errors.Is(err, tc.not), "error is %v", err)
		must.Equal(t, "sent", tc.sent, len(changes(pve1.Requests())))
		want := map[string]string{
			"content": "iso", "filename": "recast-1.iso", "url": isoLink, "verify-certificates": "1",
			"checksum": "ab", "checksum-algorithm": "sha256",
		}
		must.Equal(t, "parameters", want, form)
	})
}

// TestDiskImageBecomesADisk: from the upload to a drive, whatever part of it was lost on the way.
func TestDiskImageBecomesADisk(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		ctx := t.Context()
		l.world.AddStorage(world.Storage{ID: "disks", Type: "nfs", Shared: true, Content: []string{"import"}, Capacity: 1 << 30})
		disk := bytes.Repeat([]byte("recast disk "), 200_000)
		disk = disk[:len(disk)/512*512]
		content := must.Get(artefact.QCOW2(disk, artefact.Zstd))(t)
		u := isoOf(t, content)
		u.Storage, u.Name = "disks", "recast-1.qcow2"
		_, found, err := l.DiskImage(ctx, "pve1", "disks", u.Name)
		must.Hold(t, !found && err == nil, "it is there, or %v", err)
		must.Do(t, l.Upload(ctx, u))
		file, found, err := l.DiskImage(ctx, "pve1", "disks", u.Name)
		must.Equal(t, "found", fmt.Sprint(len(content), true, nil), fmt.Sprint(file.SizeBytes, found, err))
		list := must.Get(l.DiskImages(ctx, "pve1", "disks"))(t)
		must.Hold(t, len(list) == 1 && list[0].Name == u.Name && list[0].SizeBytes == u.SizeBytes, "listed are %v", list)
		must.Equal(t, "ISOs", 0, len(must.Get(l.ISOs(ctx, "pve1", "disks"))(t)))

		must.Do(t, l.SetConfig(ctx, l.read(t, 9011), map[string]string{"scsi5": "fast:0,import-from=disks:import/recast-1.qcow2,serial=system-1"}, nil))
		vm := l.read(t, 9011)
		volid, _, _ := strings.Cut(vm.Config["scsi5"], ",")
		must.Hold(t, bytes.HasPrefix(l.world.Media(volid, "pve1").Bytes(), disk), "%s has other bytes", volid)
		must.Contain(t, "scsi5", vm.Config["scsi5"], "serial=system-1")
	})
}

func TestMayImport(t *testing.T) {
	const storages = "GET /nodes/pve1/storage"
	const noType = "storage \"disks\" does not have the content type \"import\", which Proxmox VE has since 8.3: `pvesm set disks --content` sets the types"
	type row struct {
		content, privileges, want string
	}
	onEachNode(t, map[string]row{
		"to look":       {"iso,import", `{"Datastore.Audit":1}`, ""},
		"to allocate":   {"import", `{"Datastore.AllocateSpace":1}`, ""},
		"to delete":     {"import", `{"Datastore.Allocate":1}`, ""},
		"nothing":       {"import", `{"Datastore.AllocateTemplate":1}`, "the token has neither Datastore.Audit nor Datastore.AllocateSpace on /storage/disks"},
		"only ISOs":     {"iso,vztmpl", `{"Datastore.Audit":1}`, noType},
		"an older host": {"images,iso,vztmpl,backup", `{"Datastore.Audit":1}`, noType},
	}, func(t *testing.T, pve1 *fake, c *Client, test row) {
		pve1.On(storages, data(`[{"storage":"disks","content":"`+test.content+`","enabled":1,"active":1,"shared":1,"avail":9}]`))
		pve1.On("GET /access/permissions?path=%2Fstorage%2Fdisks", data(`{"/storage/disks":`+test.privileges+`}`))
		why, err := c.MayImport(t.Context(), "pve1", "disks")
		must.Equal(t, "reason", fmt.Sprint(test.want, nil), fmt.Sprint(why, err))
	})
}

// seesAll answers as for a token that sees every VM.
func seesAll(f *fake) {
	f.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
	f.On("GET /access/permissions", data(`{"/":{"Sys.Audit":1,"VM.Audit":1},"/access":{"Sys.Audit":1},"/vms":{"VM.Audit":1},"/vms/101":{"VM.Audit":0}}`))
	f.On("GET /access/acl", data(`[{"path":"/","ugid":"recast@pve!roll","roleid":"Recast","type":"token","propagate":1},
		{"path":"/vms/101","ugid":"else@pve","roleid":"NoAccess","type":"user","propagate":1},
		{"path":"/pool/lab","ugid":"else@pve","roleid":"NoAccess","type":"user","propagate":1}]`))
}

func TestUses(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		seesAll(pve1)
		moved := data(`[{"type":"qemu","vmid":101,"node":"pve1","name":"wk1","status":"running"},{"type":"lxc","vmid":102,"node":"pve1","name":"ct"},
			{"type":"qemu","vmid":103,"node":"pve2","name":"gone","status":"stopped"}]`)
		pve1.On("GET /cluster/resources?type=vm", moved)
		pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[{"key":"description","value":"was made from iso/y.iso"},{"key":"cores","value":2},
			{"key":"ide2","value":"local:iso/a.iso,media=cdrom","pending":"none,media=cdrom"},{"key":"ide3","value":"local:iso/b.iso,media=cdrom","delete":1},
			{"key":"sata0","pending":"local:iso/c.iso,media=cdrom"}]`))
		pve1.On("GET /nodes/pve1/qemu/101/snapshot", data(`[{"name":"before"},{"name":"current","running":1}]`))
		pve1.On("GET /nodes/pve1/qemu/101/snapshot/before/config", data(`{"ide2":"local:iso/d.iso,media=cdrom","memory":"512","description":"x","snaptime":1}`))
		pve1.On("GET /nodes/pve2/qemu/103/pending", raw("500 Configuration file 'nodes/pve2/qemu-server/103.conf' does not exist", ""))
		pve1.On("GET /nodes/pve2/qemu/103/config", raw("500 Configuration file 'nodes/pve2/qemu-server/103.conf' does not exist", ""))
		pve1.On("GET /cluster/nextid?vmid=103", data(`"103"`))
		got := must.Get(c.Uses(t.Context()))(t)
		want := []images.Use{
			{By: `VM 101 "wk1" on pve1`, Values: []string{
				"2", "local:iso/a.iso,media=cdrom", "none,media=cdrom", "local:iso/b.iso,media=cdrom", "local:iso/c.iso,media=cdrom",
			}},
			{By: `snapshot before of VM 101 "wk1" on pve1`, Values: []string{"1", "512", "local:iso/d.iso,media=cdrom"}},
		}
		must.Equal(t, "uses", want, got)
	})
}

func TestUsesFails(t *testing.T) {
	const permissions, acl, snapshots = "GET /access/permissions", "GET /access/acl", onVM101 + "/snapshot"
	const noAudit, hidden = "it has no VM.Audit on ", "it has no VM.Audit on /pool/lab: the role NoAccess is given there"
	held := func(vms string) route { return data(`{"/access":{"Sys.Audit":1},"/vms":` + vms + `}`) }
	without := func(path, who, kind string) route {
		return data(`[{"path":"` + path + `","ugid":"` + who + `","roleid":"NoAccess","type":"` + kind + `"}]`)
	}
	type row struct {
		request string
		answer  route
		want    string
		kind    fault.Kind
	}
	onEachNode(t, map[string]row{
		"a token that has nothing":               {permissions, data(`{}`), noAudit + "/vms that propagates", fault.Refused},
		"VM.Audit that does not propagate":       {permissions, held(`{"VM.Audit":0}`), noAudit + "/vms that propagates", fault.Refused},
		"a VM with less":                         {permissions, held(`{"VM.Audit":1},"/vms/101":{"VM.Console":1}`), noAudit + "/vms/101", fault.Refused},
		"a VM with nothing, which is not listed": {acl, without("/vms/105", "recast@pve", "user"), noAudit + "/vms/105", fault.Refused},
		"a pool that is hidden":                  {acl, without("/pool/lab", "recast@pve!roll", "token"), hidden, fault.Refused},
		"a pool that is hidden from a group":     {acl, without("/pool/lab", "bots", "group"), hidden, fault.Refused},
		"an access list that may be short":       {permissions, data(`{"/vms":{"VM.Audit":1}}`), "it has no Sys.Audit on /access", fault.Refused},
		"a host that is down":                    {onVM101 + "/pending", raw("595 No route to host", ""), "read what VM 101 refers to: ", fault.Failed},
		"a host that is offline":                 {"GET /nodes", data(`[{"node":"pve1","status":"offline"}]`), "host pve1 is offline, so VM 101 can't be read", fault.Failed},
		"a snapshot that can't be read":          {snapshots, data(`[{"name":"s"}]`), "snapshot 's' does not exist", fault.Failed},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		seesAll(pve1)
		pve1.On("GET /cluster/resources?type=vm", data(`[{"type":"qemu","vmid":101,"node":"pve1","name":"wk1"}]`))
		pve1.On(onVM101+"/pending", data(`[]`))
		pve1.On(snapshots, data(`[]`))
		pve1.On(snapshots+"/s/config", raw("500 snapshot 's' does not exist", ""))
		pve1.On(tc.request, tc.answer)
		must.FailAs(t, must.Err(c.Uses(t.Context())), tc.kind, tc.want)
	})
}

func TestShelf(t *testing.T) {
	const volume = "DELETE /nodes/pve1/storage/isos/content/isos:iso%2Fa.iso"
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes", data(`[{"node":"pve2","status":"online"},{"node":"pve3","status":"offline"},{"node":"pve1","status":"unknown"}]`))
		pve1.On(isosPath, data(`[{"volid":"isos:iso/b.iso","size":7,"ctime":946684800},{"volid":"isos:iso/a.iso","size":"1048576"}]`), data(`[]`))
		pve1.On(volume, data(`"`+testUPID+`"`), lost, raw("403 Permission check failed (/storage/isos, Datastore.Allocate)", ""))
		pve1.On(statusPath, stopped("OK"))
		pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=imgdel", data(`[]`))
		online, offline, err := c.Nodes(t.Context())
		must.Do(t, err)
		must.Equal(t, "nodes", [][]string{{"pve1", "pve2"}, {"pve3"}}, [][]string{online, offline})
		a := images.StoredISO{Host: "pve1", Storage: "isos", Name: "a.iso", SizeBytes: 1 << 20}
		want := []images.StoredISO{a, {Host: "pve1", Storage: "isos", Name: "b.iso", SizeBytes: 7, Changed: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}}
		must.Equal(t, "ISOs", want, must.Get(c.ISOs(t.Context(), "pve1", "isos"))(t))
		for range 2 { // the second time the answer is lost, and the VM is gone
			must.Do(t, c.DeleteISO(t.Context(), a))
		}
		must.FailAs(t, c.DeleteISO(t.Context(), a), fault.Refused, "delete a.iso on storage isos on pve1: ")
	})
}

const (
	uploadPath = "POST /nodes/pve1/storage/isos/upload"
	isosPath   = "GET /nodes/pve1/storage/isos/content?content=iso"

	mayUploadPath = "GET /access/permissions?path=%2Fstorage%2Fisos"
)

// mayUpload says that the token may upload ISOs.
var mayUpload = data(`{"/storage/isos":{"Datastore.AllocateTemplate":1}}`)

// acceptUploads makes a node take uploads with these answers.
func acceptUploads(f *fake, answers ...route) {
	f.On(isosPath, data(`[]`))
	f.On(mayUploadPath, mayUpload)
	f.On(uploadPath, answers...)
	f.On(statusPath, running, stopped("OK"))
	f.On(logPath, data(`[]`))
}

// countedFile counts the open files.
type countedFile struct {
	io.Reader
	open *atomic.Int32
}

func (f *countedFile) Close() error { f.open.Add(-1); return nil }

// isoOf is an upload of that file, which must be closed when the test ends.
func isoOf(t *testing.T, content []byte) images.Upload {
	t.Helper()
	var open atomic.Int32
	t.Cleanup(func() { must.Equal(t, "open files", int32(0), open.Load()) })
	return images.Upload{
		Host: "pve1", Storage: "isos", Name: "recast-1.iso", SizeBytes: int64(len(content)), SHA256: fmt.Sprintf("%x", sha256.Sum256(content)),
		Open: func() (io.ReadCloser, error) {
			open.Add(1)
			return &countedFile{bytes.NewReader(content), &open}, nil
		},
	}
}

// received is an uploaded form, its file only as a sum.
type received struct {
	parts  []part
	length int64 // of the whole body
}

type part struct{ Name, File, Value string }

func (got *received) read(r *http.Request) error {
	_, boundary, _ := strings.Cut(r.Header.Get("Content-Type"), "boundary=")
	form := multipart.NewReader(r.Body, boundary)
	got.length = r.ContentLength
	for {
		p, err := form.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var value bytes.Buffer
		sum := sha256.New()
		to := io.Writer(&value)
		if p.FileName() != "" {
			to = sum
		}
		if _, err := io.Copy(to, p); err != nil {
			return err
		}
		if p.FileName() != "" {
			fmt.Fprintf(&value, "%x", sum.Sum(nil))
		}
		got.parts = append(got.parts, part{p.FormName(), p.FileName(), value.String()})
	}
}

// want are the parts in the only order that Proxmox takes.
func (got *received) want(t *testing.T, u images.Upload) {
	t.Helper()
	must.Equal(t, "parts", []part{
		{Name: "content", Value: "iso"},
		{Name: "checksum-algorithm", Value: "sha256"},
		{Name: "checksum", Value: u.SHA256},
		{Name: "filename", File: u.Name, Value: u.SHA256},
	}, got.parts)
}

// take answers with a task.
func (got *received) take(w http.ResponseWriter, r *http.Request) {
	if err := got.read(r); err != nil {
		raw("400 "+err.Error(), "")(w, r)
		return
	}
	data(`"`+testUPID+`"`)(w, r)
}

func TestUpload(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		var got received
		acceptUploads(pve1, got.take)
		u := isoOf(t, bytes.Repeat([]byte("talos"), 200_000))
		var last int64
		u.Progress = func(sent int64) {
			must.Hold(t, sent > last, "progress goes from %d to %d", last, sent)
			last = sent
		}
		must.Do(t, c.Upload(t.Context(), u))
		got.want(t, u)
		must.Hold(t, last == u.SizeBytes && got.length > last,
			"progress ends at %d of %d, the request had %d bytes", last, u.SizeBytes, got.length)
	})
}

func TestFormBeginsEachPartWithItsDisposition(t *testing.T) {
	t.Parallel()
	f := must.Get(newForm(images.Upload{Name: "a.iso", SHA256: "00"}))(t)
	_, boundary, _ := strings.Cut(f.contentType, "boundary=")
	parts := strings.Split(string(f.head), "--"+boundary+"\r\n")[1:]
	must.Equal(t, "parts", 4, len(parts))
	for _, p := range parts {
		must.Hold(t, strings.HasPrefix(p, "Content-Disposition: form-data; name="), "part begins %q", p)
	}
}

// swallow answers after receiving the whole request.
func swallow(then route) route {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		then(w, r)
	}
}

func TestUploadFails(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 1<<20)
	type row struct {
		answer route
		task   string // how it ends
		size   int64
		is     error
		want   string // part of the error
	}
	onEachNode(t, map[string]row{
		"checksum":        {answer: swallow(data(`"` + testUPID + `"`)), task: "checksum mismatch: got 'a' != expect 'b'", want: "checksum mismatch: got 'a'"},
		"full storage":    {answer: swallow(data(`"` + testUPID + `"`)), task: "cp: error writing: No space left on device", is: api.ErrNoSpace, want: "No space left"},
		"refused":         {answer: swallow(raw("500 storage 'isos' does not support 'iso' content", "")), want: "POST /nodes/pve1/storage/isos/upload: 500 storage 'isos' does not support 'iso' content"},
		"no such storage": {answer: swallow(raw("500 storage 'isos' does not exist", "")), is: images.ErrNoStorage, want: "does not exist"},
		"file is shorter": {answer: swallow(data(`"` + testUPID + `"`)), size: 2 << 20, is: io.ErrUnexpectedEOF, want: "the file ends after 1048576 of 2097152 bytes"},
		"context ends":    {answer: swallow(after(time.Hour, lost)), is: context.DeadlineExceeded, want: "deadline"},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		acceptUploads(pve1, tc.answer)
		pve1.On(statusPath, stopped(tc.task))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		u := isoOf(t, content)
		u.SizeBytes = max(tc.size, u.SizeBytes)
		wantError(t, c.Upload(ctx, u), tc.is, tc.want)
	})
}

// TestUploadThatProxmoxWouldRefuse is not started: the refusal could not be received.
func TestUploadThatProxmoxWouldRefuse(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		acceptUploads(pve1, lost)
		pve1.On(mayUploadPath, data(`{"/storage/isos":{"Datastore.Audit":1}}`))
		err := c.Upload(t.Context(), isoOf(t, bytes.Repeat([]byte("x"), 1<<20)))
		const want = "403 Permission check failed (/storage/isos, Datastore.AllocateTemplate)"
		must.Hold(t, err != nil && strings.Contains(err.Error(), want) && fault.CodeOf(err) == fault.TokenPrivileges && fault.KindOf(err) == fault.Refused,
			"%v", err)
		must.Equal(t, "changes", []string{}, changes(pve1.Requests()))
	})
}

func TestUploadGoesToAnotherEndpoint(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		var got received
		acceptUploads(pve2, got.take)
		u := isoOf(t, []byte("small"))
		must.Do(t, s.client(t, "pve1", "pve2").Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadWithoutAnswer: the outcome of an upload is looked up, and only one without effect is sent again.
func TestUploadWithoutAnswer(t *testing.T) {
	const (
		nodes  = "GET /nodes"
		tasks  = "/tasks?limit=500&source=all&typefilter=imgcopy"
		copied = "UPID:pve2:0000ABCD:00012345:386D4380:imgcopy::recast@pve!roll:"
		other  = "UPID:pve2:0000ABCE:00012345:386D4380:imgcopy::else@pve!roll:"
	)
	content := bytes.Repeat([]byte("x"), 4<<20)
	there := data(`[{"volid":"isos:iso/recast-1.iso","size":4194304}]`)
	ok := swallow(data(`"` + testUPID + `"`))
	type row struct {
		answers, isos []route
		tasks         []route // of pve2, which receives the upload
		exit          string  // of the task there
		sent          int
		quick         bool // it cannot have had an effect, so nothing is looked up
		is            error
		fails         string
	}
	must.Bubbles(t, map[string]row{
		"its task is found":        {answers: []route{swallow(lost)}, tasks: []route{data(`[]`), data(`[{"upid":"` + copied + `"},{"upid":"` + other + `"}]`)}, exit: "OK", sent: 1},
		"its task has failed":      {answers: []route{swallow(lost)}, tasks: []route{data(`[{"upid":"` + copied + `"}]`)}, exit: "checksum mismatch: got 'a'", sent: 1, fails: "checksum mismatch: got 'a'"},
		"the file shows":           {answers: []route{swallow(lost)}, isos: []route{data(`[]`), data(`[]`), there}, sent: 1},
		"cut off, then sent again": {answers: []route{lost, ok}, sent: 2, quick: true},
		"a file was there before":  {answers: []route{swallow(lost), ok}, isos: []route{there}, sent: 2},
		"no answer comes ever":     {answers: []route{swallow(lost)}, sent: 3, is: cluster.ErrLostAnswer, fails: "since then neither a task nor the file has appeared"},
		"a proxy cancels it":       {answers: []route{swallow(raw("596 Connection timed out", "")), ok}, sent: 2},
		"nothing can be looked up": {answers: []route{swallow(lost)}, tasks: []route{raw("403 Permission check failed", "")}, sent: 1, is: cluster.ErrLostAnswer, fails: "403 Permission check failed"},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		pve2 := s.Node(t, "pve2")
		acceptUploads(pve2, tc.answers...)
		if tc.isos != nil {
			pve2.On(isosPath, tc.isos...)
		}
		pve2.On(nodes, data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"online"},{"node":"pve3","status":"offline"}]`))
		pve2.On("GET /nodes/pve1"+tasks, data(`[]`))
		pve2.On("GET /nodes/pve2"+tasks, data(`[]`))
		if tc.tasks != nil {
			pve2.On("GET /nodes/pve2"+tasks, tc.tasks...)
		}
		pve2.On("GET /nodes/pve2/status", data(`{"uptime":745}`))
		pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/status", running, stopped(tc.exit))
		pve2.On("GET /nodes/pve2/tasks/"+url.PathEscape(copied)+"/log?limit=500", data(`[]`))
		begun := time.Now()
		wantError(t, s.client(t, "pve2").Upload(t.Context(), isoOf(t, content)), tc.is, tc.fails)
		took := time.Since(begun)
		must.Hold(t, !tc.quick || took <= lateness/2, "it took %s", took)
		must.Equal(t, "sent", tc.sent, len(changes(pve2.Requests())))
	})
}

// TestUploadIsCancelled at once, although the server reads nothing, without reading
// more of the file than fits in transit. The next upload succeeds.
func TestUploadIsCancelled(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		var got received
		release := make(chan struct{})
		acceptUploads(pve1, func(http.ResponseWriter, *http.Request) { <-release }, got.take)
		u := isoOf(t, bytes.Repeat([]byte("talos"), 2<<20))
		var read atomic.Int64
		u.Progress = read.Store
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Upload(ctx, u) }()
		synctest.Wait()
		n := read.Load()
		must.Hold(t, n <= 1<<20, "%d bytes were read, but none was received", n)
		begun := time.Now()
		cancel()
		must.FailIs(t, <-ended, context.Canceled)
		must.Take(t, begun, 0, time.Second)
		close(release)
		must.Do(t, c.Upload(t.Context(), u))
		got.want(t, u)
	})
}

// TestUploadRefusesNames that Proxmox would change or reject.
func TestUploadRefusesNames(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		for _, name := range []string{"", ".iso", "a b.iso", "a/b.iso", "ä.iso", "a.iso.part", "a.ISO", strings.Repeat("a", 252) + ".iso"} {
			err := c.Upload(t.Context(), images.Upload{Host: "pve1", Storage: "isos", Name: name})
			errDownload := c.Download(t.Context(), images.Download{Host: "pve1", Storage: "isos", Name: name})
			must.Equal(t, name, [2]fault.Kind{fault.Config, fault.Config}, [2]fault.Kind{fault.KindOf(err), fault.KindOf(errDownload)})
			must.Equal(t, name+": requests", 0, len(pve1.Requests()))
		}
		must.Do(t, checkFileName(strings.Repeat("a", 251)+".iso"))
	})
}

const (
	hugeBytes = 4 << 30
	// hugeSHA256 is the checksum of that many zeros.
	hugeSHA256 = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca"

	serverVar = "RECAST_UPLOAD_SERVER" // address and fingerprint
	fileVar   = "RECAST_UPLOAD_FILE"
)

// TestUploadMemory uploads 4 GiB over TLS from a client in another, small process, which
// the environment tells of the server: its peak above that counts.
func TestUploadMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: 4 GiB take a while")
	}
	if os.Getenv(serverVar) != "" {
		uploadHuge(t)
		return
	}
	got := measureUpload(t)
	t.Logf("%d MiB at %d MiB/s; %.1f MiB idle, peak %.1f MiB above that; cancelled in %s, %.1f MiB ahead of the server",
		hugeBytes>>20, int(hugeBytes/got.took.Seconds())>>20, got.idleMiB, got.aboveMiB, got.cancelled, got.aheadMiB)
	must.Hold(t, got.aboveMiB < 64, "peak is %.1f MiB above idle", got.aboveMiB)
	must.Hold(t, got.cancelled <= time.Second, "cancelled in %s", got.cancelled)
	// The kernel's buffers on both ends take some of it, but no more.
	must.Hold(t, got.aheadMiB <= 256, "%.1f MiB were read from the file that the server had not received", got.aheadMiB)
}

func BenchmarkUpload(b *testing.B) {
	b.SetBytes(hugeBytes)
	var last uploadFigures
	for b.Loop() {
		last = measureUpload(b)
	}
	b.ReportMetric(last.aboveMiB, "peak-MiB-above-idle")
	b.ReportMetric(last.cancelled.Seconds()*1000, "ms-to-cancel")
}

// uploadFigures are the cost of one upload.
type uploadFigures struct {
	idleMiB, aboveMiB float64
	took              time.Duration
	cancelled         time.Duration // from the cancel to the return of an upload that the server had stopped reading
	aheadMiB          float64       // what that one had read from its file beyond what the server received
}

// measureUpload serves one upload, of this test run again in another process.
func measureUpload(t testing.TB) uploadFigures {
	t.Helper()
	file := filepath.Join(t.TempDir(), "huge.iso")
	must.Do(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, hugeBytes)))
	where, stop := serveUploads(t)
	defer stop()
	client := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUploadMemory$")
	client.Env = append(os.Environ(), serverVar+"="+where, fileVar+"="+file)
	client.Stderr = os.Stderr
	said, err := client.Output()
	must.Be(t, err == nil, "%v\n%s", err, said)
	var got uploadFigures
	line, _, _ := strings.Cut(string(said), "\n")
	if _, err := fmt.Sscan(line, &got.idleMiB, &got.aboveMiB, (*int64)(&got.took), (*int64)(&got.cancelled), &got.aheadMiB); err != nil {
		t.Fatalf("%v in %q", err, said)
	}
	return got
}

// uploadHuge is the client.
func uploadHuge(t *testing.T) {
	endpoint, fingerprint, _ := strings.Cut(os.Getenv(serverVar), " ")
	c, err := New(api.Options{Endpoints: []string{endpoint}, Fingerprint: fingerprint, Token: []byte(apitest.Token), Poll: 10 * time.Millisecond})
	must.Do(t, err)
	defer c.Close()
	u := images.Upload{
		Host: "pve1", Storage: "isos", Name: "huge.iso", SizeBytes: hugeBytes, SHA256: hugeSHA256,
		Open: func() (io.ReadCloser, error) { return os.Open(os.Getenv(fileVar)) },
	}
	_, _, err = c.ISO(t.Context(), u.Host, u.Storage, u.Name)
	must.Do(t, err)
	var got uploadFigures
	got.idleMiB = memoryMiB(t, "VmRSS")
	got.cancelled, got.aheadMiB = cancelHuge(t, c, u)
	begun := time.Now()
	must.Do(t, c.Upload(t.Context(), u))
	got.took = time.Since(begun)
	got.aboveMiB = memoryMiB(t, "VmHWM") - got.idleMiB
	fmt.Println(got.idleMiB, got.aboveMiB, int64(got.took), int64(got.cancelled), got.aheadMiB)
}

// cancelHuge cancels an upload once the server stops reading.
func cancelHuge(t *testing.T, c *Client, u images.Upload) (took time.Duration, aheadMiB float64) {
	u.Host = stallingHost
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan int64)
	u.Progress = func(sent int64) {
		select {
		case read <- sent:
		case <-ctx.Done():
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Upload(ctx, u) }()
	for {
		select {
		case sent := <-read:
			aheadMiB = float64(sent-stallAfter) / (1 << 20)
			continue
		case err := <-ended:
			t.Fatalf("ended by itself: %v", err)
		case <-time.After(500 * time.Millisecond): // the other process reads no more
		}
		break
	}
	begun := time.Now()
	cancel()
	must.FailIs(t, <-ended, context.Canceled)
	return time.Since(begun), aheadMiB
}

// memoryMiB reads a figure of this process (proc_pid_status(5)).
func memoryMiB(t *testing.T, name string) float64 {
	t.Helper()
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(status), name+":")
	return float64(must.Get(strconv.Atoi(strings.Fields(rest)[0]))(t)) / 1024
}

const (
	// stallingHost stops reading an upload after stallAfter bytes.
	stallingHost = "pve2"
	stallAfter   = 64 << 20
)

// serveUploads is a Proxmox node that receives uploads of ISOs and keeps only their
// checksums; where is its address and fingerprint.
func serveUploads(t testing.TB) (where string, stop func()) {
	t.Helper()
	taker := &uploadTaker{ended: make(chan struct{})}
	srv := httptest.NewUnstartedServer(taker)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	return srv.URL + " " + apitest.Fingerprint(srv.Certificate()), func() {
		close(taker.ended)
		srv.Close()
	}
}

type uploadTaker struct {
	ended chan struct{} // ends the uploads that have stalled
	exit  atomic.Value  // of the last task: a string
}

func (s *uploadTaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/nodes/"+stallingHost+"/"):
		_, _ = io.CopyN(io.Discard, r.Body, stallAfter)
		<-s.ended
	case r.Method == http.MethodPost:
		var got received
		exit := "OK"
		if err := got.read(r); err != nil || len(got.parts) != 4 || got.parts[3].Value != got.parts[2].Value || got.length <= 0 {
			exit = fmt.Sprintf("received %+v, %v", got, err)
		}
		s.exit.Store(exit)
		data(`"`+testUPID+`"`)(w, r)
	case strings.HasSuffix(r.URL.Path, "/status"):
		stopped(s.exit.Load().(string))(w, r)
	case strings.HasSuffix(r.URL.Path, "/access/permissions"):
		data(fmt.Sprintf(`{%q:{"Datastore.AllocateTemplate":1}}`, r.URL.Query().Get("path")))(w, r)
	default:
		data(`[]`)(w, r)
	}
}
