package contract

import (
	"crypto/rand"
	"fmt"
	noise "math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// pollTasks is how often exchanges poll a task of a real server: most take less than a second.
const pollTasks = 250 * time.Millisecond

// newUUID makes a UUID for SMBIOS.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// bootISO is the ISO that exchanges put into the CD drive: uploaded once per test.
func (s *server) bootISO() (volid string) {
	s.t.Helper()
	name := isoPrefix + "boot.iso"
	if s.isoSize(s.place.node, s.place.isoStorage, name) < 0 {
		s.ownISO(s.place.isoStorage + ":iso/" + name)
		s.uploadOK(iso(), file(name, "an ISO"))
	}
	return s.place.isoStorage + ":iso/" + name
}

// image is the content of a data disk: its size and the number of bytes written, so that
// its volume is recognizable by its allocation. The content is random, so that a
// compressing file system can't shrink it.
type image struct {
	size, written int
	seed          byte
}

func dataImages() map[string]image {
	return map[string]image{
		"scsi1": {size: 768 << 10, written: 128 << 10, seed: 1},
		"scsi2": {size: 1 << 20, written: 512 << 10, seed: 2},
	}
}

func (i image) bytes() []byte {
	b := make([]byte, i.size)
	_, _ = noise.NewChaCha8([32]byte{i.seed}).Read(b[:i.written]) // never fails
	return b
}

// imports says whether the ISO storage takes images of disks. Since 8.3 Proxmox allows
// that for "local" by default, unless its contents were set.
func (s *server) imports() bool {
	s.t.Helper()
	return strings.Contains(text(s.storageConfig(s.place.isoStorage)["content"]), "import")
}

// data is a new data disk in a create call: one with recognizable content if an image can
// be imported, a blank one of a unique size otherwise.
func (s *server) data(key string) string {
	s.t.Helper()
	if !s.imports() {
		return s.blank(key)
	}
	return s.place.storage + ":0,import-from=" + s.dataImage(key)
}

func (s *server) dataImage(key string) (volid string) {
	s.t.Helper()
	name := isoPrefix + key + ".raw"
	volid = s.place.isoStorage + ":import/" + name
	if s.row(volid) == nil {
		s.ownISO(volid)
		e := s.wait(s.upload(part{name: "content", value: "import"}, file(name, string(dataImages()[key].bytes()))))
		if e.Exit != "OK" {
			s.t.Fatalf("upload of %s ended with %q: %q", name, e.Exit, e.Log)
		}
	}
	return volid
}

// TestImport: how the exchanges get disks with unique content.
func TestImport(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		if !s.imports() {
			s.skipf("needs content type import on %s: without it the data disks of the exchanges are blank", s.place.isoStorage)
		}
		id := s.newVM("scsi1="+s.data("scsi1")+",serial=data-1", "scsi2="+s.data("scsi2"))
		used := map[string]allocated{}
		for key, want := range dataImages() {
			got := s.driveIs(key, s.config(id)[key])
			used[key] = got.Used
			if onFiles(got.volid) && got.Size != itoa(want.size) || got.Owner != id { // elsewhere it is rounded up
				t.Errorf("%s is %+v", key, got)
			}
			if s.sim != nil && got.Bytes != sum(string(want.bytes())) {
				t.Errorf("%s has other bytes than its image", key)
			}
			if strings.Contains(s.config(id)[key], "import-from") {
				t.Errorf("%s is %s", key, s.config(id)[key])
			}
		}
		if onFiles(s.volid(id, "scsi1")) && used["scsi2"]-used["scsi1"] <= 2*settling {
			t.Errorf("they can't be told apart by what they take up: %v", used)
		}
		r := s.do(http.MethodPut, s.vm(id, "config"), "scsi3="+s.place.storage+":1,import-from="+s.dataImage("scsi1"))
		wantRefusal(t, r, refused, map[string]string{"scsi3": "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"})
	})
}
