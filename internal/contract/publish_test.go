package contract

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
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
			size := must.Get(strconv.Atoi(text(row["size"])))(s.t)
			return size
		}
	}
	return -1
}

func (s *server) wantISO(name string, size int) {
	s.t.Helper()
	same(s.t, size, s.isoSize(s.place.node, s.place.isoStorage, name))
}

func (s *server) uploadOK(parts ...part) ended {
	s.t.Helper()
	e := s.wait(s.upload(parts...))
	must.Be(s.t, e.Exit == "OK", "upload ended with %q: %q", e.Exit, e.Log)
	return e
}

func TestUpload(t *testing.T) {
	story(t, "stores any bytes as an ISO, after it has checked their sum", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		e := s.uploadOK(iso(), part{name: "checksum-algorithm", value: "sha256"}, part{name: "checksum", value: strings.ToUpper(sum("any bytes"))}, file(name, "any bytes"))
		same(t, "imgcopy", e.kind())
		must.Hold(t, slices.Contains(e.Log, "calculating checksum...OK, checksum verified") &&
			slices.Contains(e.Log, "file size is: 9"), "log %q", e.Log)
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
		same(t, fmt.Sprintf("checksum mismatch: got '%s' != expect '%s'", sum("bytes"), wrong), e.Exit)
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
		must.Be(t, e.Exit == "OK", "ended with %q", e.Exit)
		same(t, s.place.node, strings.Split(e.UPID, ":")[1])
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
		e := s.wait(s.uploadTo(s.place.node, storage, iso(), file(name, "bytes")))
		must.Be(t, e.Exit == "OK", "ended with %q", e.Exit)
		same(t, 5, s.isoSize(s.place.node2, storage, name))
		id := s.newVMOn(s.place.node2, "scsi0="+storage+":1")
		same(t, 1, len(s.volumes(storage, id)))
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
		_, used := s.sim.world.RootDisk(s.place.node)
		must.Hold(t, used == 1<<30-5, "%d bytes in use: the spooled file is still there", used)
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
	longName := strings.Repeat("x", 252) + ".iso"
	checksum := []part{iso(), {name: "checksum", value: sum("bytes")}, {name: "checksum-algorithm", value: "sha256"}, file("%s", "bytes")}
	tests := map[string]struct {
		parts  []part // %s is the name of the file
		status string
		errors map[string]string
	}{
		"checksum before its algorithm": {checksum, "400 Bad Request", nil},
		"a field that is none":          {[]part{iso(), {name: "nosuch", value: "1"}, file("%s", "bytes")}, "400 Bad Request", nil},
		"content after the file":        {[]part{file("%s", "bytes"), iso()}, refused, map[string]string{"content": missing}},
		"another extension": {
			[]part{iso(), file("%s.txt", "bytes")}, refused, map[string]string{"filename": "wrong file extension"},
		},
		"a name of more than 255 characters": {
			[]part{iso(), file(longName, "bytes")}, refused, map[string]string{"filename": "value may only be 255 characters long"},
		},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			name := s.isoName()
			for i, p := range test.parts {
				test.parts[i].file = strings.Replace(p.file, "%s", name, 1)
			}
			got := s.upload(test.parts...)
			wantRefusal(t, got, test.status, test.errors)
			must.Hold(t, test.errors != nil || len(got.Body) == 0, "body %q", got.Body)
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
		must.Hold(t, got.Code >= 400, "%v", got.Status)
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
		same(t, want, s.send(upload()).Status)
		s.get("/version")
		got := s.send(upload())
		must.Hold(t, got.Status == "400 bad request" || got.Status == want, "%s, want 400 bad request, or %s", got.Status, want)
	})
}

// wantPlain requires an error of the HTTP server itself, whose text is also in the body
// since libpve-http-server-perl 5.2.0; before, the body was empty.
func wantPlain(t *testing.T, got reply, status string) {
	t.Helper()
	_, text, _ := strings.Cut(status, " ")
	body := strings.TrimSpace(string(got.Body))
	must.Hold(t, got.Status == status && (body == text || body == ""), "%s, body %q; want %s", got.Status, got.Body, status)
}

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

// upload is content for the ISO storage of the node, in the form for recast's client.
func (s *server) clientUpload(name, content string) images.Upload {
	return images.Upload{
		Host: s.place.node, Storage: s.place.isoStorage, Name: name, SizeBytes: int64(len(content)), SHA256: sum(content),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil },
	}
}

func (s *server) clientUploadOK(name, content string) {
	s.t.Helper()
	must.Do(s.t, s.client.Upload(s.t.Context(), s.clientUpload(name, content)))
}

func (s *server) stored(node, storage, name string) (images.StoredISO, bool) {
	s.t.Helper()
	isos := must.Get(s.client.ISOs(s.t.Context(), node, storage))(s.t)
	i := slices.IndexFunc(isos, func(iso images.StoredISO) bool { return iso.Name == name })
	if i < 0 {
		return images.StoredISO{}, false
	}
	age := time.Since(isos[i].Changed)
	must.Hold(s.t, age >= -time.Hour && age <= time.Hour, "%s was changed %s ago", name, age)
	isos[i].Changed = time.Time{}
	return isos[i], true
}

func TestClientUpload(t *testing.T) {
	long(t)
	large := string(bytes.Repeat([]byte("0123456789abcdef\r\n--"), 200_000)) // 4 MB, with the beginnings of boundaries
	story(t, "stores an ISO", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		u := s.clientUpload(name, large)
		var last int64
		u.Progress = func(sent int64) { last = sent }
		must.Do(t, s.client.Upload(t.Context(), u))
		file, found, err := s.client.ISO(t.Context(), u.Host, u.Storage, name)
		same(t, fmt.Sprint(u.SizeBytes, true, nil, u.SizeBytes), fmt.Sprint(file.SizeBytes, found, err, last))
		got, _ := s.stored(u.Host, u.Storage, name)
		same(t, images.StoredISO{Host: u.Host, Storage: u.Storage, Name: name, SizeBytes: u.SizeBytes}, got)
	})
	story(t, "stores nothing that has another checksum", 0, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), large)
		u.SHA256 = sum("other")
		err := s.client.Upload(t.Context(), u)
		e, ok := errors.AsType[*api.TaskError](err)
		must.Hold(t, ok && strings.HasPrefix(e.Exit, "checksum mismatch: got '"+sum(large)), "error is %v", err)
		s.wantISO(u.Name, -1)
	})
	story(t, "is cancelled, and the next one succeeds", 0, func(t *testing.T, s *server) {
		ctx, cancel := context.WithCancel(t.Context())
		u := s.clientUpload(s.isoName(), large)
		u.Progress = func(int64) { cancel() }
		wantError(t, context.Canceled, s.client.Upload(ctx, u))
		s.clientUploadOK(u.Name, large)
		s.wantISO(u.Name, len(large))
	})
}

func TestClientUploadElsewhere(t *testing.T) {
	story(t, "goes to another node through this one", secondNode|deleteISOs, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), "somewhere else")
		u.Host = s.place.node2
		t.Cleanup(func() {
			err := s.client.DeleteISO(context.WithoutCancel(t.Context()), images.StoredISO{Host: u.Host, Storage: u.Storage, Name: u.Name})
			must.Hold(t, err == nil, "%v", err)
		})
		if err := s.client.Upload(t.Context(), u); err != nil {
			s.crosses(err.Error())
			t.Fatal(err)
		}
		got, found := s.stored(u.Host, u.Storage, u.Name)
		must.Hold(t, found && got.SizeBytes == u.SizeBytes, "%+v", got)
	})
	story(t, "says which storage there is not", 0, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), "x")
		u.Storage = "nosuch-storage"
		must.Hold(t, s.client.Upload(t.Context(), u) != nil, "no error")
		s.holds("/storage/"+u.Storage, "Datastore.Audit")
		must.FailIs(t, must.Err(s.client.Storage(t.Context(), u.Host, u.Storage)), images.ErrNoStorage)
	})
}

// clientDownload is what the node must fetch from a dead address.
func (s *server) clientDownload(name, content string) images.Download {
	return images.Download{
		Host: s.place.node, Storage: s.place.isoStorage, Name: name, SizeBytes: int64(len(content)), SHA256: sum(content),
		URL: "http://127.0.0.1:1/" + name,
	}
}

func TestClientDownload(t *testing.T) {
	story(t, "compares a file that is there and fetches nothing", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		s.clientUploadOK(name, "mine")
		must.Do(t, s.client.Download(t.Context(), s.clientDownload(name, "mine")))
		wantError(t, images.ErrOtherContent, s.client.Download(t.Context(), s.clientDownload(name, "ours")))
		s.wantISO(name, 4)
	})
	story(t, "fails where nobody answers", 0, func(t *testing.T, s *server) {
		s.fetches()
		d := s.clientDownload(s.isoName(), "mine")
		must.Hold(t, must.Err(s.client.URLSize(t.Context(), d.Host, d.URL)) != nil, "its size is known")
		err := s.client.Download(t.Context(), d)
		_, failed := errors.AsType[*api.TaskError](err)
		must.Hold(t, failed && !errors.Is(err, images.ErrOtherContent), "error is %v", err)
		s.wantISO(d.Name, -1)
	})
	story(t, "fetches what has the checksum", simulated, func(t *testing.T, s *server) {
		s.fetches()
		link := web(t, s) + "/image.iso"
		for content, is := range map[string]error{"an image!": images.ErrOtherContent, "the image": nil} {
			d := s.clientDownload(s.isoName(), content)
			d.URL = link
			size, err := s.client.URLSize(t.Context(), d.Host, d.URL)
			must.Hold(t, size == 9 && err == nil, "%d bytes, %v", size, err)
			wantError(t, is, s.client.Download(t.Context(), d))
			want := -1
			if is == nil {
				want = 9
			}
			s.wantISO(d.Name, want)
		}
	})
	story(t, "knows what the token may not", poorToken, func(t *testing.T, s *server) {
		why, err := s.poorClient().MayDownload(t.Context(), s.place.node, s.place.isoStorage)
		want := "the token has no Datastore.AllocateTemplate on /storage/" + s.place.isoStorage
		must.Hold(t, why == want && err == nil, "%q, %v", why, err)
		s.fetches()
		if why, err := s.client.MayDownload(t.Context(), s.place.node, s.place.isoStorage); why != "" || err != nil {
			t.Errorf("with the token of the suite: %q, %v", why, err)
		}
	})
}

func (s *server) poorClient() *pve.Client {
	s.t.Helper()
	o := s.trusting()
	o.Token = cluster.Secret(s.place.poor)
	return s.connect(o)
}

// uses are the configurations that name a file, as recast's client reads them. A real
// server's token may not see every VM.
func (s *server) uses(name string) []string {
	s.t.Helper()
	all, err := s.client.Uses(s.t.Context())
	if s.sim == nil && fault.KindOf(err) == fault.Refused {
		s.skipf("needs a token that sees every VM: %v", err)
	}
	must.Do(s.t, err)
	var by []string
	for _, u := range all {
		if slices.ContainsFunc(u.Values, func(v string) bool { return strings.Contains(v, name) }) {
			by = append(by, u.By)
		}
	}
	return by
}

func TestClientUses(t *testing.T) {
	story(t, "of VMs, of what a running one is to lose, of snapshots", 0, func(t *testing.T, s *server) {
		name := s.isoName()
		s.clientUploadOK(name, strings.Repeat("iso\n", 16<<10))
		volid := s.place.isoStorage + ":iso/" + name
		same(t, []string(nil), s.uses(name))
		id := s.newVM("ide2=" + volid + ",media=cdrom")
		vm := s.read(id).String()
		wantUses := func(when string, want ...string) {
			t.Helper()
			must.Equal(t, when, want, s.uses(name))
		}
		wantUses("in a drive", vm)
		s.start(id)
		s.put(s.vm(id, "config"), "delete=ide2")
		wantUses("to be removed at the next stop", vm)
		s.stop(id)
		wantUses("after the stop")
		if !slices.Contains(s.privileges("/vms/"+itoa(id)), "VM.Snapshot") {
			return
		}
		s.put(s.vm(id, "config"), "ide2="+volid+",media=cdrom")
		s.taskOK(http.MethodPost, s.vm(id, "snapshot"), "snapname=before")
		s.put(s.vm(id, "config"), "delete=ide2")
		wantUses("in a snapshot alone", "snapshot before of "+vm)
	})
	story(t, "are not told a token that does not see every VM", poorToken, func(t *testing.T, s *server) {
		uses, err := s.poorClient().Uses(t.Context())
		must.Hold(t, fault.KindOf(err) == fault.Refused, "%v, error %v", uses, err)
	})
}

func TestClientDeleteISO(t *testing.T) {
	story(t, "deletes it, also while a VM has it in a drive, and also twice", deleteISOs, func(t *testing.T, s *server) {
		name := s.isoName()
		s.clientUploadOK(name, "iso")
		s.newVM("ide2=" + s.place.isoStorage + ":iso/" + name + ",media=cdrom")
		for range 2 {
			must.Do(t, s.client.DeleteISO(t.Context(), images.StoredISO{Host: s.place.node, Storage: s.place.isoStorage, Name: name}))
			s.wantISO(name, -1)
		}
	})
}
