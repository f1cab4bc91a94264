package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	boundary  = "recast-boundary"
	multipart = "multipart/form-data; boundary=" + boundary
	missing   = "property is missing and it is not optional"
	refused   = "400 Parameter verification failed."
)

// part is one part of a multipart body; with a file name it is the file's.
type part struct{ name, value, file string }

func iso() part                      { return part{name: "content", value: "iso"} }
func file(name, content string) part { return part{"filename", content, name} }

func form(parts ...part) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		fmt.Fprintf(&b, "--%s\r\nContent-Disposition: form-data; name=%q", boundary, p.name)
		if p.file != "" {
			fmt.Fprintf(&b, "; filename=%q\r\nContent-Type: application/octet-stream", p.file)
		}
		fmt.Fprintf(&b, "\r\n\r\n%s\r\n", p.value)
	}
	fmt.Fprintf(&b, "--%s--\r\n", boundary)
	return b.Bytes()
}

func (s *server) uploadTo(node, storage string, parts ...part) reply {
	s.t.Helper()
	return s.raw(http.MethodPost, "/nodes/"+node+"/storage/"+storage+"/upload", multipart, form(parts...))
}

// upload sends parts to the ISO storage.
func (s *server) upload(parts ...part) reply {
	s.t.Helper()
	return s.uploadTo(s.place.node, s.place.isoStorage, parts...)
}

func sum(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

// isoSize is the size of an ISO as a node sees it; -1: there is none.
func (s *server) isoSize(node, storage, name string) int {
	s.t.Helper()
	for _, row := range s.rows("/nodes/"+node+"/storage/"+storage+"/content", "content=iso") {
		if row["volid"] == storage+":iso/"+name {
			size, err := strconv.Atoi(text(row["size"]))
			must(s.t, err)
			return size
		}
	}
	return -1
}

func (s *server) wantISO(name string, size int) {
	s.t.Helper()
	if got := s.isoSize(s.place.node, s.place.isoStorage, name); got != size {
		s.t.Errorf("%s has %d bytes, want %d", name, got, size)
	}
}

func (s *server) uploadOK(parts ...part) ended {
	s.t.Helper()
	e := s.wait(s.upload(parts...))
	if e.Exit != "OK" {
		s.t.Fatalf("upload ended with %q: %q", e.Exit, e.Log)
	}
	return e
}

func TestUpload(t *testing.T) {
	story(t, "stores any bytes as an ISO, after it has checked their sum", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		e := s.uploadOK(iso(), part{name: "checksum-algorithm", value: "sha256"}, part{name: "checksum", value: strings.ToUpper(sum("any bytes"))}, file(name, "any bytes"))
		same(t, "imgcopy", e.kind())
		if !slices.Contains(e.Log, "calculating checksum...OK, checksum verified") || !slices.Contains(e.Log, "file size is: 9") {
			t.Errorf("log %q", e.Log)
		}
		s.wantISO(name, 9)
	})
	story(t, "replaces a file of that name without a word", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		s.uploadOK(iso(), file(name, "first"))
		s.uploadOK(iso(), file(name, "the second one"))
		s.wantISO(name, 14)
	})
	story(t, "verifies the sum in the task", 0, func(t *testing.T, s *server) {
		name, wrong := s.isoName(), strings.Repeat("0", 64)
		e := s.wait(s.upload(iso(), part{name: "checksum-algorithm", value: "sha256"}, part{name: "checksum", value: wrong}, file(name, "bytes")))
		if want := fmt.Sprintf("checksum mismatch: got '%s' != expect '%s'", sum("bytes"), wrong); e.Exit != want {
			t.Errorf("ended with %q, want %q", e.Exit, want)
		}
		s.wantISO(name, -1)
	})
	story(t, "takes fields from the query string", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/upload?content=iso"
		wantExit(t, s.wait(s.raw(http.MethodPost, path, multipart, form(file(name, "bytes")))), "OK")
		s.wantISO(name, 5)
	})
}

func TestUploadElsewhere(t *testing.T) {
	story(t, "goes to another node through the one that was asked", secondNode, func(t *testing.T, s *server) {
		name := s.isoName()
		r := s.uploadTo(s.place.node2, s.place.isoStorage, iso(), file(name, "bytes"))
		s.crosses(r.Status)
		e := s.wait(r)
		s.crosses(e.Exit)
		if e.Exit != "OK" {
			t.Fatalf("ended with %q", e.Exit)
		}
		if node := strings.Split(e.UPID, ":")[1]; node != s.place.node {
			t.Errorf("a task of %s", node)
		}
		same(t, 5, s.isoSize(s.place.node2, s.place.isoStorage, name))
		if r := s.do(http.MethodDelete, "/nodes/"+s.place.node2+"/storage/"+s.place.isoStorage+"/content/iso/"+name); r.Code == http.StatusOK {
			s.wait(r)
		}
	})
	story(t, "to a storage of both nodes is done once, as is a disk there", secondNode|sharedStorage, func(t *testing.T, s *server) {
		storage := s.place.sharedStorage
		s.holds("/storage/"+storage, "Datastore.AllocateTemplate", "Datastore.AllocateSpace")
		name := s.isoName()
		s.ownISO(storage + ":iso/" + name)
		if e := s.wait(s.uploadTo(s.place.node, storage, iso(), file(name, "bytes"))); e.Exit != "OK" {
			t.Fatalf("ended with %q", e.Exit)
		}
		same(t, 5, s.isoSize(s.place.node2, storage, name))
		id := s.newVMOn(s.place.node2, "scsi0="+storage+":1")
		if got := s.volumes(storage, id); len(got) != 1 {
			t.Errorf("%s sees %q", s.place.node, got)
		}
	})
}

// crosses skips a test if Proxmox says that it can't transfer a file to the other node: it
// does so by ssh, and the ISO storage need not exist there.
func (s *server) crosses(problem string) {
	s.t.Helper()
	if s.sim == nil && (strings.Contains(problem, "/usr/bin/ssh") || strings.Contains(problem, "is not available on node")) {
		s.skipf("needs ssh between the nodes, and %s on %s: %s", s.place.isoStorage, s.place.node2, problem)
	}
}

func TestUploadCopy(t *testing.T) {
	story(t, "is not atomic", simulated, func(t *testing.T, s *server) {
		name, content := s.isoName(), strings.Repeat("x", 1<<20)
		s.uploadOK(iso(), file(name, "first"))
		r := s.upload(iso(), file(name, content))
		time.Sleep(time.Second + 500*time.Microsecond) // a second to begin, then one for each GiB
		s.sim.world.KillTask(text(r.Data))
		wantExit(t, s.wait(r), "unexpected status")
		s.wantISO(name, len(content)/2)
	})
	story(t, "takes the old file away when there is no room for the new one", simulated, func(t *testing.T, s *server) {
		name := s.isoName()
		s.uploadOK(iso(), file(name, "first"))
		s.sim.world.FillStorage("local")
		want := "import failed: cp: error writing '/var/lib/vz/template/iso/" + name + "': No space left on device"
		wantExit(t, s.wait(s.upload(iso(), file(name, "second"))), want)
		s.wantISO(name, -1)
	})
	story(t, "needs room on the disk of the node that was asked", simulated, func(t *testing.T, s *server) {
		s.sim.world.SetRootDisk(s.place.node, 1<<30, 1<<30)
		wantRefusal(t, s.upload(iso(), file(s.isoName(), "bytes")), "500 write to temporary file failed - No space left on device", nil)
		s.sim.world.SetRootDisk(s.place.node, 1<<30, 1<<30-5)
		s.uploadOK(iso(), file(s.isoName(), "bytes"))
		if _, used := s.sim.world.RootDisk(s.place.node); used != 1<<30-5 {
			t.Errorf("%d bytes in use: the spooled file is still there", used)
		}
	})
}

func TestUploadNames(t *testing.T) {
	tests := map[string]struct{ name, want string }{
		"the base name counts":           {"../../etc/%s.iso", "%s.iso"},
		"the one after a backslash too":  {`C:\images\%s.iso`, "%s.iso"},
		"what is odd becomes underscore": {"%s bad name!.iso", "%s_bad_name_.iso"},
		"images may be .img":             {"%s.img", "%s.img"},
		"case does not matter":           {"%s.ISO", "%s.ISO"},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			stem := strings.TrimSuffix(s.isoName(), ".iso")
			want := fmt.Sprintf(test.want, stem)
			s.ownISO(s.place.isoStorage + ":iso/" + want)
			s.uploadOK(iso(), part{"filename", "bytes", fmt.Sprintf(test.name, stem)})
			s.wantISO(want, 5)
		})
	}
}

func TestUploadRefused(t *testing.T) {
	tests := map[string]struct {
		parts  func(name string) []part
		status string
		errors map[string]string
	}{
		"checksum before its algorithm": {
			func(name string) []part {
				return []part{iso(), {name: "checksum", value: sum("bytes")}, {name: "checksum-algorithm", value: "sha256"}, file(name, "bytes")}
			},
			"400 Bad Request", nil,
		},
		"a field that is none": {
			func(name string) []part { return []part{iso(), {name: "nosuch", value: "1"}, file(name, "bytes")} }, "400 Bad Request", nil,
		},
		"content after the file": {
			func(name string) []part { return []part{file(name, "bytes"), iso()} }, refused, map[string]string{"content": missing},
		},
		"another extension": {
			func(name string) []part { return []part{iso(), file(name+".txt", "bytes")} }, refused, map[string]string{"filename": "wrong file extension"},
		},
		"a name of more than 255 characters": {
			func(string) []part { return []part{iso(), file(strings.Repeat("x", 252)+".iso", "bytes")} },
			refused,
			map[string]string{"filename": "value may only be 255 characters long"},
		},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			name := s.isoName()
			got := s.upload(test.parts(name)...)
			wantRefusal(t, got, test.status, test.errors)
			if test.errors == nil && len(got.Body) > 0 {
				t.Errorf("body %q", got.Body)
			}
			s.wantISO(name, -1)
		})
	}
	story(t, "chunked", 0, func(t *testing.T, s *server) {
		req := s.request(s.place.token, http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.isoStorage+"/upload", multipart, nil)
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(form(iso(), file(s.isoName(), "bytes")))), -1
		wantPlain(t, s.send(req), "501 chunked transfer encoding not supported")
	})
	story(t, "without a body", 0, func(t *testing.T, s *server) {
		got := s.do(http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.isoStorage+"/upload")
		if got.Code < 400 {
			t.Error(got.Status)
		}
	})
}

func TestUploadStorages(t *testing.T) {
	story(t, "one that is not there", 0, func(t *testing.T, s *server) {
		s.holds("/storage/nosuch", "Datastore.AllocateTemplate")
		wantRefusal(t, s.uploadTo(s.place.node, "nosuch", iso(), file(s.isoName(), "bytes")), "500 storage 'nosuch' does not exist", nil)
	})
	story(t, "one that is not for ISOs", 0, func(t *testing.T, s *server) {
		if content := s.storageConfig(s.place.storage); content["path"] == nil || strings.Contains(text(content["content"]), "iso") {
			s.skipf("needs PVE_STORAGE to be one of files, but not for ISOs")
		}
		wantRefusal(t, s.uploadTo(s.place.node, s.place.storage, iso(), file(s.isoName(), "bytes")),
			fmt.Sprintf("500 storage '%s' does not support 'iso' content", s.place.storage), nil)
	})
	story(t, "one without files", simulated, func(t *testing.T, s *server) {
		s.sim.world.AddStorage(world.Storage{ID: "thin", Type: "lvmthin", Content: []string{"images"}})
		wantRefusal(t, s.uploadTo(s.place.node, "thin", iso(), file(s.isoName(), "bytes")), "500 can't upload to storage type 'lvmthin'", nil)
	})
	story(t, "one for disks to import", simulated, func(t *testing.T, s *server) {
		s.sim.world.AddStorage(world.Storage{ID: "import", Type: "dir", Content: []string{"import"}})
		content := part{name: "content", value: "import"}
		wantRefusal(t, s.uploadTo(s.place.node, "import", content, file("disk.iso", "bytes")), refused, map[string]string{"filename": "invalid filename or wrong extension"})
		wantExit(t, s.wait(s.uploadTo(s.place.node, "import", content, file("disk.raw", "bytes"))), "OK")
	})
	story(t, "without Datastore.AllocateTemplate", poorToken, func(t *testing.T, s *server) {
		upload := func() *http.Request {
			return s.request(s.place.poor, http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.isoStorage+"/upload", multipart, form(iso(), file(s.isoName(), "bytes")))
		}
		want := "403 Permission check failed (/storage/" + s.place.isoStorage + ", Datastore.AllocateTemplate)"
		s.http.CloseIdleConnections() // a reused connection gets another answer:
		if got := s.send(upload()); got.Status != want {
			t.Errorf("%s, want %s", got.Status, want)
		}
		s.get("/version")
		if got := s.send(upload()); got.Status != "400 bad request" && got.Status != want {
			t.Errorf("%s, want 400 bad request, or %s", got.Status, want)
		}
	})
}

// wantPlain requires an error of the HTTP server itself, whose text is also in the body
// since libpve-http-server-perl 5.2.0; before, the body was empty.
func wantPlain(t *testing.T, got reply, status string) {
	t.Helper()
	_, text, _ := strings.Cut(status, " ")
	if body := strings.TrimSpace(string(got.Body)); got.Status != status || body != text && body != "" {
		t.Errorf("%s, body %q; want %s", got.Status, got.Body, status)
	}
}

// storageConfig is the cluster-wide definition of a storage.
func (s *server) storageConfig(id string) map[string]any {
	s.t.Helper()
	for _, entry := range s.rows("/storage") {
		if entry["storage"] == id {
			return entry
		}
	}
	s.t.Fatalf("no storage %s", id)
	return nil
}
