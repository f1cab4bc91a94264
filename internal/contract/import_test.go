package contract

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
)

const (
	tinyDiskBytes = 3 << 20
	badImage      = "failed to query file information with qemu-img"
)

// tinyDisk is a disk with something at its beginning and in its last sector.
func tinyDisk() []byte {
	b := make([]byte, tinyDiskBytes)
	copy(b, bytes.Repeat([]byte("recast "), 5000))
	b[len(b)-1] = 1
	return b
}

// tinyImage is tinyDisk as a qcow2 file of some 100 KiB.
func tinyImage(t *testing.T) string {
	t.Helper()
	b, err := artefact.QCOW2(tinyDisk(), artefact.Plain)
	must(t, err)
	return string(b)
}

func importing() part { return part{name: "content", value: "import"} }

// diskName makes a name for a disk image, which is removed at the end if the token may do that.
func (s *server) diskName() string {
	s.t.Helper()
	name := strings.TrimSuffix(s.isoName(), ".iso") + ".qcow2"
	s.ownISO(s.place.isoStorage + ":import/" + name)
	return name
}

// takesImages skips a test on a server whose ISO storage does not have the content type.
func (s *server) takesImages() {
	s.t.Helper()
	if !s.imports() {
		s.skipf("needs content type import on %s", s.place.isoStorage)
	}
}

// tiny uploads a disk image and returns its volume.
func (s *server) tiny(content string) (volid string) {
	s.t.Helper()
	name := s.diskName()
	s.uploadOK(importing(), file(name, content))
	return s.place.isoStorage + ":import/" + name
}

func TestDiskImages(t *testing.T) {
	story(t, "are listed with the size of the file, and shown with that of the disk", 0, func(t *testing.T, s *server) {
		s.takesImages()
		content := tinyImage(t)
		volid := s.tiny(content)
		row := s.row(volid)
		same(t, fmt.Sprint("import qcow2 ", len(content)), fmt.Sprint(text(row["content"]), " ", text(row["format"]), " ", text(row["size"])))
		info := object(t, s.get(s.content(volid)))
		same(t, itoa(tinyDiskBytes)+" qcow2", text(info["size"])+" "+text(info["format"]))
	})
	story(t, "are looked into when they are uploaded", 0, func(t *testing.T, s *server) {
		s.takesImages()
		name := s.diskName()
		wantExit(t, s.wait(s.upload(importing(), file(name, "bytes"))), badImage)
		backed := []byte(tinyImage(t))
		const nameAt = 0x78
		backed[15], backed[19] = nameAt, byte(copy(backed[nameAt:], "base.raw")) // where the name of a backing file is, and its length
		got := s.wait(s.upload(importing(), file(name, string(backed)))).Exit
		if !regexp.MustCompile(`^backing file not allowed for untrusted image '/var/tmp/pveupload-[0-9a-f]+'!$`).MatchString(got) {
			t.Error(got)
		}
		if s.row(s.place.isoStorage+":import/"+name) != nil {
			t.Error("it was stored")
		}
	})
	story(t, "are looked into when they are downloaded", simulated, func(t *testing.T, s *server) {
		s.fetches()
		name := s.diskName()
		path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
		e := s.task(http.MethodPost, path, "content=import", "verify-certificates=0", "url="+s.source(), "filename="+name)
		wantExit(t, e, "failed to verify file: "+badImage)
		same(t, "download", e.kind())
		if s.row(s.place.isoStorage+":import/"+name) != nil {
			t.Error("it was stored")
		}
	})
	story(t, "are for no storage without the content type", 0, func(t *testing.T, s *server) {
		if content := s.storageConfig(s.place.storage); content["path"] == nil || strings.Contains(text(content["content"]), "import") {
			s.skipf("needs PVE_STORAGE to be one of files, but not for images to import")
		}
		s.fetches()
		s.holds("/storage/"+s.place.storage, "Datastore.AllocateTemplate")
		wantRefusal(t, s.uploadTo(s.place.node, s.place.storage, importing(), file(s.diskName(), tinyImage(t))),
			fmt.Sprintf("500 storage '%s' does not support 'import' content", s.place.storage), nil)
		path := "/nodes/" + s.place.node + "/storage/" + s.place.storage + "/download-url"
		wantRefusal(t, s.do(http.MethodPost, path, "content=import", "url="+nowhere, "filename="+s.diskName()),
			fmt.Sprintf("500 storage '%s' is not configured for content-type 'import'", s.place.storage), nil)
	})
}

func TestImportFrom(t *testing.T) {
	story(t, "makes a disk of the size in the image, with the options that were given", 0, func(t *testing.T, s *server) {
		s.takesImages()
		volid := s.tiny(tinyImage(t))
		id := s.newVM()
		s.taskOK(http.MethodPost, s.vm(id, "config"), "scsi1="+s.place.storage+":0,import-from="+volid+",serial=system-1,discard=on")
		got := s.driveIs("scsi1", s.config(id)["scsi1"])
		if got.Owner != id || onFiles(got.volid) && got.Size != itoa(tinyDiskBytes) {
			t.Errorf("scsi1 is %+v", got)
		}
		if line := s.config(id)["scsi1"]; !strings.Contains(line, "serial=system-1") || !strings.Contains(line, "discard=on") || strings.Contains(line, "import-from") {
			t.Errorf("scsi1 is %s", line)
		}
		if s.sim != nil && got.Bytes != sum(string(tinyDisk())) {
			t.Error("it has other bytes than the image")
		}
		if s.row(volid) == nil {
			t.Error("the image is gone")
		}
	})
	story(t, "takes an image that was cut short for a disk with zeros", 0, func(t *testing.T, s *server) {
		s.takesImages()
		content := tinyImage(t)
		id := s.newVM("scsi0=" + s.place.storage + ":0,import-from=" + s.tiny(content[:len(content)/2]))
		got := s.driveIs("scsi0", s.config(id)["scsi0"])
		if onFiles(got.volid) && got.Size != itoa(tinyDiskBytes) {
			t.Errorf("scsi0 is %+v", got)
		}
		if s.sim != nil && got.Bytes == sum(string(tinyDisk())) {
			t.Error("nothing is missing")
		}
	})
	story(t, "of an image that is not there", 0, func(t *testing.T, s *server) {
		s.takesImages()
		id, r := s.create("scsi0=" + s.place.storage + ":0,import-from=" + s.place.isoStorage + ":import/" + s.diskName())
		if got := s.wait(r).Exit; !strings.HasPrefix(got, fmt.Sprintf("unable to create VM %d - failed to stat '/", id)) {
			t.Error(got)
		}
	})
	story(t, "needs space on the disk's storage, and to see the image's", simulated, func(t *testing.T, s *server) {
		volid, id := s.tiny(tinyImage(t)), s.newVM()
		form := "scsi1=" + s.place.storage + ":0,import-from=" + volid
		for name, test := range map[string]struct {
			token, want string
		}{
			"no space":      {s.without("Datastore.AllocateSpace"), "403 Permission check failed (/storage/" + s.place.storage + ", Datastore.AllocateSpace)"},
			"not the image": {s.only("/vms", "VM.Config.Disk", "VM.Audit"), "403 Permission check failed (/storage/" + s.place.isoStorage + ", Datastore.AllocateSpace|Datastore.Audit)"},
		} {
			if name == "not the image" {
				s.also(test.token, "/storage/"+s.place.storage, "Datastore.AllocateSpace")
			}
			if got := s.as(test.token, http.MethodPut, s.vm(id, "config"), form); got.Status != test.want {
				t.Errorf("%s: %s, want %s", name, got.Status, test.want)
			}
		}
	})
}

// TestClientDisks: recast's client puts disk images on a storage and finds them there.
func TestClientDisks(t *testing.T) {
	story(t, "uploads, lists and removes one", deleteISOs, func(t *testing.T, s *server) {
		s.takesImages()
		ctx, name, content := t.Context(), s.diskName(), tinyImage(t)
		s.clientUploadOK(name, content)
		size, found, err := s.client.DiskImage(ctx, s.place.node, s.place.isoStorage, name)
		same(t, fmt.Sprint(len(content), true, nil), fmt.Sprint(size, found, err))
		list, err := s.client.DiskImages(ctx, s.place.node, s.place.isoStorage)
		must(t, err)
		var stored images.StoredISO
		for _, d := range list {
			if d.Name == name {
				stored = d
			}
		}
		same(t, int64(len(content)), stored.SizeBytes)
		why, err := s.client.MayImport(ctx, s.place.node, s.place.isoStorage)
		same(t, fmt.Sprint("", nil), fmt.Sprint(why, err))
		must(t, s.client.DeleteISO(ctx, stored))
		_, found, err = s.client.DiskImage(ctx, s.place.node, s.place.isoStorage, name)
		same(t, fmt.Sprint(false, nil), fmt.Sprint(found, err))
	})
	story(t, "has the node download one, and makes a disk of it", simulated, func(t *testing.T, s *server) {
		s.fetches()
		ctx, name, content := t.Context(), s.diskName(), tinyImage(t)
		must(t, s.client.Download(ctx, images.Download{
			Host: s.place.node, Storage: s.place.isoStorage, Name: name, URL: web(t, s) + "/disk.qcow2", SizeBytes: int64(len(content)), SHA256: sum(content),
		}))
		id := s.newVM()
		vm, err := s.client.VM(ctx, cluster.VMID(id))
		must(t, err)
		must(t, s.client.SetConfig(ctx, vm, map[string]string{"scsi1": s.place.storage + ":0,import-from=" + s.place.isoStorage + ":import/" + name + ",serial=system-1"}, nil))
		if got := s.driveIs("scsi1", s.config(id)["scsi1"]); got.Bytes != sum(string(tinyDisk())) {
			t.Errorf("scsi1 is %+v", got)
		}
	})
	story(t, "refuses a storage without the content type, with the reason", simulated, func(t *testing.T, s *server) {
		why, err := s.client.MayImport(t.Context(), s.place.node, s.place.storage)
		want := fmt.Sprintf("storage %q does not have the content type \"import\", which Proxmox VE has since 8.3: `pvesm set %s --content` sets the types", s.place.storage, s.place.storage)
		if why != want || err != nil {
			t.Errorf("%s; %v", why, err)
		}
		if _, err := s.client.MayImport(t.Context(), s.place.node, "nosuch"); !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("err = %v", err)
		}
	})
}
