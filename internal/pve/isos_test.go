package pve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	downloadPath = "POST /nodes/pve1/storage/isos/download-url"
	isoLink      = "https://factory.talos.dev/image/abc/v1.13.9/nocloud-amd64.iso"
)

func TestMayDownload(t *testing.T) {
	t.Parallel()
	const template = "Datastore.AllocateTemplate"
	for name, tc := range map[string]struct {
		storage, node, root string // privileges held there
		want                string
	}{
		"Sys.AccessNetwork":        {storage: template, node: "Sys.AccessNetwork"},
		"the old way":              {storage: template, node: "Sys.Console", root: "Sys.Audit Sys.Modify"},
		"Sys.Modify alone":         {storage: template, root: "Sys.Modify", want: "the token has no Sys.AccessNetwork on /nodes/pve1"},
		"Sys.Audit alone":          {storage: template, root: "Sys.Audit", want: "the token has no Sys.AccessNetwork on /nodes/pve1"},
		"nothing on the storage":   {storage: "Datastore.Audit", node: "Sys.AccessNetwork", want: "the token has no Datastore.AllocateTemplate on /storage/isos"},
		"a token that has nothing": {want: "the token has no Datastore.AllocateTemplate on /storage/isos"},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			for path, privileges := range map[string]string{"/storage/isos": tc.storage, "/nodes/pve1": tc.node, "/": tc.root} {
				held := "{}"
				if privileges != "" {
					held = `{"` + path + `":{"` + strings.ReplaceAll(privileges, " ", `":0,"`) + `":1}}`
				}
				pve1.On("GET /access/permissions?path="+url.QueryEscape(path), data(held))
			}
			why, err := c.MayDownload(t.Context(), "pve1", "isos")
			if why != tc.want || err != nil {
				t.Errorf("why not: %q, want %q; %v", why, tc.want, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Node(t, "pve1")
		if _, err := s.client(t, "pve1").MayDownload(t.Context(), "pve1", "isos"); err == nil {
			t.Error("no error although no host answers")
		}
	})
}

func TestURLSize(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes/pve1/query-url-metadata?"+url.Values{"url": {isoLink}, "verify-certificates": {"1"}}.Encode(),
			data(`{"filename":"nocloud-amd64.iso","size":1048576,"mimetype":"application/octet-stream"}`), data(`{"size":"7"}`), data(`{"filename":"x"}`),
			raw("500 invalid server response: '404 Not Found'", ""))
		for _, want := range []int64{1048576, 7, 0} {
			if got, err := c.URLSize(t.Context(), "pve1", isoLink); got != want || err != nil {
				t.Errorf("%d bytes, want %d; %v", got, want, err)
			}
		}
		if _, err := c.URLSize(t.Context(), "pve1", isoLink); err == nil || !strings.Contains(err.Error(), "invalid server response: '404 Not Found'") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestDownload(t *testing.T) {
	t.Parallel()
	const (
		upid   = "UPID:pve1:0000ABCD:00012345:386D4380:download:recast-1.iso:recast@pve!roll:"
		tasks  = "GET /nodes/pve1/tasks?limit=500&source=all&typefilter=download"
		stored = `[{"volid":"isos:iso/recast-1.iso","size":7}]`
	)
	started := data(`"` + upid + `"`)
	d := images.Download{Host: "pve1", Storage: "isos", Name: "recast-1.iso", URL: isoLink, SizeBytes: 7, SHA256: "ab"}
	for name, tc := range map[string]struct {
		answers []route
		tasks   string
		isos    string
		exit    string
		is, not error
		fails   string
		sent    int
	}{
		"done":    {answers: []route{started}, exit: "OK", sent: 1},
		"refused": {answers: []route{raw("403 Permission check failed", "")}, fails: "403 Permission check failed", sent: 1},
		"wget fails": {
			answers: []route{started}, exit: "download failed: command '/usr/bin/wget' failed: exit code 4", not: images.ErrOtherContent,
			fails: "task download recast-1.iso on pve1: download failed", sent: 1,
		},
		"other bytes": {
			answers: []route{started}, exit: "checksum mismatch: got 'aa' != expect 'ab'", is: images.ErrOtherContent, fails: "it has another checksum", sent: 1,
		},
		"another file is there": {
			answers: []route{started}, exit: "checksum mismatch: got 'aa' != expect 'ab', aborting", is: images.ErrOtherContent, fails: "aborting", sent: 1,
		},
		"its task is found":          {answers: []route{lost}, tasks: `[{"upid":"` + upid + `"}]`, isos: stored, exit: "OK", sent: 1},
		"the file shows":             {answers: []route{lost}, isos: stored, sent: 1},
		"nothing shows: once more":   {answers: []route{lost, started}, exit: "OK", sent: 2},
		"its host does not answer":   {answers: []route{raw("595 No route to host", "")}, is: cluster.ErrLostAnswer, fails: "595 No route to host", sent: 2},
		"a file that it has not got": {answers: []route{lost, started}, isos: `[{"volid":"isos:iso/recast-1.iso","size":6}]`, exit: "OK", sent: 2},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			var form map[string]string
			answers := make([]route, len(tc.answers))
			for i, then := range tc.answers {
				answers[i] = func(w http.ResponseWriter, r *http.Request) {
					if err := json.NewDecoder(r.Body).Decode(&form); err != nil {
						t.Error(err)
					}
					then(w, r)
				}
			}
			pve1.On(downloadPath, answers...)
			pve1.On(tasks, data(cmp.Or(tc.tasks, "[]")))
			pve1.On("GET /nodes/pve1/status", data(`{"uptime":745}`))
			pve1.On(isosPath, data(cmp.Or(tc.isos, "[]")))
			pve1.On("GET /nodes/pve1/tasks/"+url.PathEscape(upid)+"/status", running, stopped(tc.exit))
			pve1.On("GET /nodes/pve1/tasks/"+url.PathEscape(upid)+"/log?limit=500", data(`[]`))
			err := c.Download(t.Context(), d)
			if err != nil != (tc.fails != "") || tc.fails != "" && !strings.Contains(err.Error(), tc.fails) ||
				tc.is != nil && !errors.Is(err, tc.is) || tc.not != nil && errors.Is(err, tc.not) {
				t.Errorf("error is %v, want %q in it", err, tc.fails)
			}
			same(t, "sent", tc.sent, len(changes(pve1.Requests())))
			want := map[string]string{
				"content": "iso", "filename": "recast-1.iso", "url": isoLink, "verify-certificates": "1",
				"checksum": "ab", "checksum-algorithm": "sha256",
			}
			same(t, "parameters", want, form)
		})
	}
}

// TestDiskImageBecomesADisk: from the upload to a drive, whatever part of it was lost on the way.
func TestDiskImageBecomesADisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		l.world.AddStorage(world.Storage{ID: "disks", Type: "nfs", Shared: true, Content: []string{"import"}, Capacity: 1 << 30})
		disk := bytes.Repeat([]byte("recast disk "), 200_000)
		disk = disk[:len(disk)/512*512]
		content, err := artefact.QCOW2(disk, artefact.Zstd)
		must(t, err)
		u := isoOf(t, content)
		u.Storage, u.Name = "disks", "recast-1.qcow2"
		if _, found, err := l.DiskImage(ctx, "pve1", "disks", u.Name); found || err != nil {
			t.Fatalf("it is there, or %v", err)
		}
		must(t, l.Upload(ctx, u))
		size, found, err := l.DiskImage(ctx, "pve1", "disks", u.Name)
		same(t, "found", fmt.Sprint(len(content), true, nil), fmt.Sprint(size, found, err))
		list, err := l.DiskImages(ctx, "pve1", "disks")
		must(t, err)
		if len(list) != 1 || list[0].Name != u.Name || list[0].SizeBytes != int64(len(content)) {
			t.Errorf("listed are %v", list)
		}
		isos, err := l.ISOs(ctx, "pve1", "disks")
		same(t, "ISOs", fmt.Sprint(0, nil), fmt.Sprint(len(isos), err))

		must(t, l.SetConfig(ctx, l.read(t, 9011), map[string]string{"scsi5": "fast:0,import-from=disks:import/recast-1.qcow2,serial=system-1"}, nil))
		vm := l.read(t, 9011)
		volid, _, _ := strings.Cut(vm.Config["scsi5"], ",")
		if got := l.world.Media(volid, "pve1").Bytes(); !bytes.HasPrefix(got, disk) || !strings.Contains(vm.Config["scsi5"], "serial=system-1") {
			t.Errorf("scsi5 is %s, with %d bytes of %d", vm.Config["scsi5"], len(got), len(disk))
		}
	})
}

func TestDownloadOfADiskImage(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		const name, upid = "recast-1.qcow2", "UPID:pve1:0000ABCD:00012345:386D4380:download:recast-1.qcow2:recast@pve!roll:"
		var form map[string]string
		pve1.On("POST /nodes/pve1/storage/disks/download-url", sent(&form, data(`"`+upid+`"`)))
		task := "GET /nodes/pve1/tasks/" + url.PathEscape(upid)
		pve1.On(task+"/status", stopped("OK"))
		pve1.On(task+"/log?limit=500", data(`[]`))
		must(t, c.Download(t.Context(), images.Download{Host: "pve1", Storage: "disks", Name: name, URL: "https://factory/x.qcow2", SizeBytes: 7, SHA256: "abc"}))
		same(t, "form", "import recast-1.qcow2 abc", form["content"]+" "+form["filename"]+" "+form["checksum"])
	})
}

func TestMayImport(t *testing.T) {
	t.Parallel()
	const storages = "GET /nodes/pve1/storage"
	const noType = "storage \"disks\" does not have the content type \"import\", which Proxmox VE has since 8.3: `pvesm set disks --content` sets the types"
	for name, test := range map[string]struct {
		content, privileges, want string
	}{
		"to look":       {"iso,import", `{"Datastore.Audit":1}`, ""},
		"to allocate":   {"import", `{"Datastore.AllocateSpace":1}`, ""},
		"to delete":     {"import", `{"Datastore.Allocate":1}`, ""},
		"nothing":       {"import", `{"Datastore.AllocateTemplate":1}`, "the token has neither Datastore.Audit nor Datastore.AllocateSpace on /storage/disks"},
		"only ISOs":     {"iso,vztmpl", `{"Datastore.Audit":1}`, noType},
		"an older host": {"images,iso,vztmpl,backup", `{"Datastore.Audit":1}`, noType},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			pve1.On(storages, data(`[{"storage":"disks","content":"`+test.content+`","enabled":1,"active":1,"shared":1,"avail":9}]`))
			pve1.On("GET /access/permissions?path=%2Fstorage%2Fdisks", data(`{"/storage/disks":`+test.privileges+`}`))
			why, err := c.MayImport(t.Context(), "pve1", "disks")
			same(t, "reason", fmt.Sprint(test.want, nil), fmt.Sprint(why, err))
		})
	}
}
