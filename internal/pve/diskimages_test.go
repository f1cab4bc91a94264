package pve

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
