package contract

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

const nowhere = "http://127.0.0.1:1/x.iso"

// known caches the result of source on a real server.
var known string

// source is a file on the node's own web server that the node can fetch: it may not reach
// itself by the address that we use. Only a download shows that: query-url-metadata uses
// HEAD, which Proxmox's web server refuses (known_methods in AnyEvent.pm).
func (s *server) source() string {
	s.t.Helper()
	if known != "" && s.sim == nil {
		return known
	}
	hosts := []string{"https://127.0.0.1:8006"}
	for _, o := range s.rows("/cluster/status") {
		if o["name"] == s.place.node && o["ip"] != nil {
			hosts = append(hosts, "https://"+net.JoinHostPort(text(o["ip"]), "8006"))
		}
	}
	for _, host := range append(hosts, s.place.endpoint) {
		for _, path := range []string{"/pve2/images/logo-128.png", "/api2/json/access/domains"} {
			if e := s.wait(s.download(host+path, s.isoName())); e.Exit != "OK" {
				continue
			}
			if s.sim == nil {
				known = host + path
			}
			return host + path
		}
	}
	s.skipf("needs a node that can fetch something from itself")
	return ""
}

// beside is another path on the server of source.
func (s *server) beside(path string) string {
	s.t.Helper()
	u := must.Get(url.Parse(s.source()))(s.t)
	u.Path = path
	return u.String()
}

// fetches skips a test unless the token may make the node fetch URLs.
func (s *server) fetches() {
	s.t.Helper()
	if s.sim != nil {
		s.holds("/nodes/"+s.place.node, "Sys.AccessNetwork")
	}
	node, root := s.privileges("/nodes/"+s.place.node), s.privileges("/")
	if !slices.Contains(node, "Sys.AccessNetwork") && (!slices.Contains(root, "Sys.Audit") || !slices.Contains(root, "Sys.Modify")) {
		s.skipf("needs Sys.AccessNetwork on /nodes/%s", s.place.node)
	}
	if s.sim != nil {
		s.sim.world.SetDial(s.sim.network.Dialer().DialContext)
	}
}

// web serves files on the simulated network; "/slow.iso" never ends, "/silent.iso" never begins.
func web(t *testing.T, s *server) (url string) {
	t.Helper()
	mux := http.NewServeMux()
	ended := make(chan struct{})
	mux.HandleFunc("/talos.iso", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/octet-stream; charset=binary")
		rw.Header().Set("Content-Disposition", `attachment; filename="metal-amd64.iso"`)
		_, _ = rw.Write([]byte("talos"))
	})
	mux.HandleFunc("/image.iso", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "image.iso", time.Time{}, strings.NewReader("the image"))
	})
	mux.HandleFunc("/disk.qcow2", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "disk.qcow2", time.Time{}, strings.NewReader(tinyImage(t)))
	})
	mux.HandleFunc("/slow.iso", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write([]byte("half"))
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	mux.HandleFunc("/silent.iso", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	const addr = "127.42.9.200:80"
	listener := must.Get(s.sim.network.Listen(addr))(t)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func(l net.Listener) { served <- server.Serve(l) }(listener)
	t.Cleanup(func() {
		close(ended)
		must.Pass(t, server.Close())
		<-served
	})
	return "http://" + addr
}

// download makes the node fetch a URL, without verification of certificates.
func (s *server) download(url, name string, form ...string) reply {
	s.t.Helper()
	path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
	return s.do(http.MethodPost, path, append([]string{"content=iso", "verify-certificates=0", "url=" + url, "filename=" + name}, form...)...)
}

func (s *server) downloadOK(url, name string, form ...string) ended {
	s.t.Helper()
	e := s.wait(s.download(url, name, form...))
	must.Be(s.t, e.Exit == "OK", "download ended with %q: %q", e.Exit, e.Log)
	return e
}

func TestDownload(t *testing.T) {
	story(t, "stores what a URL points at", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		same(t, "download", s.downloadOK(s.source(), name).kind())
		got := s.isoSize(s.place.node, s.place.isoStorage, name)
		must.Hold(t, got > 0, "%d bytes", got)
	})
	story(t, "never replaces a file, and is done if that has the sum", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		s.uploadOK(iso(), file(name, "mine"))
		got := s.wait(s.download(nowhere, name)).Exit
		wantMatch(t, `^refusing to override existing file '/.*/`+name+`'$`, got)
		e := s.downloadOK(nowhere, name, "checksum-algorithm=sha256", "checksum="+sum("mine"))
		must.Contain(t, "what was said", strings.Join(e.Log, "\n"), "no need to download")
		got = s.wait(s.download(nowhere, name, "checksum-algorithm=sha256", "checksum="+sum("theirs"))).Exit
		wantPrefix(t, fmt.Sprintf("checksum mismatch: got '%s' != expect '%s'", sum("mine"), sum("theirs")), got)
		s.wantISO(name, 4)
	})
	story(t, "keeps nothing of a file with another sum", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		got := s.wait(s.download(s.source(), name, "checksum-algorithm=sha256", "checksum="+sum("theirs"))).Exit
		wantPrefix(t, "checksum mismatch: got '", got)
		s.wantISO(name, -1)
	})
}

func TestDownloadFails(t *testing.T) {
	for what, path := range map[string]string{"does not listen": nowhere, "has no such file": "/pve2/images/nosuch.png"} {
		story(t, "where the server "+what, 0, func(t *testing.T, s *server) {
			s.fetches()
			url := path
			if strings.HasPrefix(url, "/") {
				url = s.beside(path)
			}
			name := s.isoName()
			wantPrefix(t, "download failed: ", s.wait(s.download(url, name)).Exit)
			s.wantISO(name, -1)
		})
	}
	story(t, "where the certificate is nobody's, unless told not to look", simulated, func(t *testing.T, s *server) {
		s.fetches()
		path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
		got := s.task(http.MethodPost, path, "content=iso", "url="+s.source(), "filename="+s.isoName()).Exit
		wantPrefix(t, "download failed: ", got)
	})
	story(t, "without a way out", simulated, func(t *testing.T, s *server) {
		s.fetches()
		url := s.source()
		s.sim.world.SetOutbound(s.place.node, false)
		wantExit(t, s.wait(s.download(url, s.isoName())), "download failed: failed: Network is unreachable.")
	})
}

func TestDownloadRefused(t *testing.T) {
	tests := map[string]struct {
		form   []string
		errors map[string]string
	}{
		"another extension": {[]string{"filename=x.txt", "url=http://127.0.0.1:1/"}, map[string]string{"filename": "wrong file extension"}},
		"another protocol":  {[]string{"filename=x.iso", "url=ftp://127.0.0.1/x.iso"}, map[string]string{"url": "value does not match the regex pattern"}},
		"no URL":            {[]string{"filename=x.iso"}, map[string]string{"url": missing}},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			s.fetches()
			got := s.do(http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.isoStorage+"/download-url", append([]string{"content=iso"}, test.form...)...)
			same(t, []any{refused, 1}, []any{got.Status, len(got.Errors)})
			for param, want := range test.errors {
				wantPrefix(t, want, got.Errors[param])
			}
		})
	}
	story(t, "a storage that is not for ISOs", simulated, func(t *testing.T, s *server) {
		s.fetches()
		got := s.do(http.MethodPost, "/nodes/pve1/storage/data/download-url", "content=iso", "filename=x.iso", "url=http://127.0.0.1/x.iso")
		wantRefusal(t, got, "500 storage 'data' is not configured for content-type 'iso'", nil)
	})
	story(t, "with only one half of the old right", simulated, func(t *testing.T, s *server) {
		for _, role := range []string{"Contract", "DeletesISOs"} {
			s.sim.world.AddRole(role, "Sys.Modify", "Datastore.AllocateTemplate", "Datastore.Audit", "VM.Audit")
		}
		wantRefusal(t, s.download(s.place.endpoint+"/x.iso", "x.iso"), "403 Permission check failed", nil)
	})
}

func TestDownloadInterrupted(t *testing.T) {
	tests := map[string]struct {
		end  func(s *server, upid string)
		exit string
		left int64 // bytes on the storage
	}{
		"stopped":           {func(s *server, upid string) { s.do(http.MethodDelete, "/nodes/pve1/tasks/"+escape(upid)) }, "download failed: received interrupt", 0},
		"killed":            {func(s *server, upid string) { s.sim.world.KillTask(upid) }, "unexpected status", 4},
		"by its node's end": {func(s *server, _ string) { s.sim.world.RebootHost("pve1", time.Minute) }, "unexpected status", 4},
	}
	for name, test := range tests {
		story(t, name, simulated, func(t *testing.T, s *server) {
			s.fetches()
			r := s.download(web(t, s)+"/slow.iso", "slow.iso")
			upid := text(r.Data)
			time.Sleep(3 * time.Second)
			test.end(s, upid)
			wantExit(t, s.wait(r), test.exit)
			same(t, test.left, s.used("local"))
			s.wantISO("slow.iso", -1)
		})
	}
}

func (s *server) used(storage string) int64 {
	s.t.Helper()
	return int64(object(s.t, s.get("/nodes/"+s.place.node+"/storage/"+storage+"/status"))["used"].(float64))
}

func TestQueryURLMetadata(t *testing.T) {
	story(t, "is what the server says of a file", simulated, func(t *testing.T, s *server) {
		s.fetches()
		got := object(t, s.get("/nodes/pve1/query-url-metadata", "url="+web(t, s)+"/talos.iso"))
		same(t, []any{"metal-amd64.iso", "application/octet-stream"}, []any{got["filename"], got["mimetype"]})
	})
	story(t, "gives up after three minutes", simulated, func(t *testing.T, s *server) {
		s.fetches()
		url, began := web(t, s)+"/silent.iso", time.Now()
		want := "500 invalid server response: '500 Can't connect to 127.42.9.200:80 (Connection timed out)'"
		wantRefusal(t, s.do(http.MethodGet, "/nodes/pve1/query-url-metadata", "url="+url), want, nil)
		same(t, 3*time.Minute, time.Since(began))
	})
	story(t, "passes a refusal or a failed connection on", 0, func(t *testing.T, s *server) {
		s.fetches()
		for url, want := range map[string]string{s.beside("/nosuch/file.iso"): "'501 ", nowhere: "'500 Can't connect to 127.0.0.1:1"} {
			got := s.do(http.MethodGet, "/nodes/"+s.place.node+"/query-url-metadata", "verify-certificates=0", "url="+url)
			wantPrefix(t, "500 invalid server response: "+want, got.Status)
		}
	})
}

func TestDeleteISO(t *testing.T) {
	story(t, "asks nobody who has it mounted", deleteISOs, func(t *testing.T, s *server) {
		name := s.isoName()
		s.uploadOK(iso(), file(name, strings.Repeat("x", 2048)))
		id := s.newVM("ide2=" + s.place.isoStorage + ":iso/" + name + ",media=cdrom")
		s.start(id)
		s.taskOK(http.MethodDelete, s.content(s.place.isoStorage+":iso/"+name))
		s.wantISO(name, -1)
		s.stop(id)
		want := fmt.Sprintf("volume '%s:iso/%s' does not exist", s.place.isoStorage, name)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/start")), want)
	})
	story(t, "is fine with one that is not there", deleteISOs, func(t *testing.T, s *server) {
		s.taskOK(http.MethodDelete, s.content(s.place.isoStorage+":iso/"+s.isoName()))
	})
}

func TestStorageOffline(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.AddStorage(world.Storage{ID: "offline", Type: "nfs", Shared: true, Content: []string{"iso"}})
		s.sim.world.SetStorageActive("offline", "pve1", false)
		status := object(t, s.get("/nodes/pve1/storage/offline/status"))
		same(t, []any{"0", "0"}, []any{text(status["active"]), text(status["total"])})
		wantRefusal(t, s.do(http.MethodGet, "/nodes/pve1/storage/offline/content"), "500 storage 'offline' is not online", nil)
		wantRefusal(t, s.uploadTo("pve1", "offline", iso(), file("x.iso", "x")), "500 storage 'offline' is not online", nil)
		wantExit(t, s.wait(s.uploadTo("pve2", "offline", iso(), file("x.iso", "x"))), "OK")
	})
}

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
	b := must.Get(artefact.QCOW2(tinyDisk(), artefact.Plain))(t)
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
		wantMatch(t, `^backing file not allowed for untrusted image '/var/tmp/pveupload-[0-9a-f]+'!$`, got)
		s.wantFreed(s.place.isoStorage + ":import/" + name)
	})
	story(t, "are looked into when they are downloaded", simulated, func(t *testing.T, s *server) {
		s.fetches()
		name := s.diskName()
		path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
		e := s.task(http.MethodPost, path, "content=import", "verify-certificates=0", "url="+s.source(), "filename="+name)
		wantExit(t, e, "failed to verify file: "+badImage)
		same(t, "download", e.kind())
		s.wantFreed(s.place.isoStorage + ":import/" + name)
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
		must.Hold(t, got.Owner == id && (!onFiles(got.volid) || got.Size == itoa(tinyDiskBytes)), "scsi1 is %+v", got)
		line := s.config(id)["scsi1"]
		must.Hold(t, strings.Contains(line, "serial=system-1") && strings.Contains(line, "discard=on") && !strings.Contains(line, "import-from"), "scsi1 is %s", line)
		must.Hold(t, s.sim == nil || got.Bytes == sum(string(tinyDisk())), "it has other bytes than the image")
		must.Hold(t, s.row(volid) != nil, "the image is gone")
	})
	story(t, "takes an image that was cut short for a disk with zeros", 0, func(t *testing.T, s *server) {
		s.takesImages()
		content := tinyImage(t)
		id := s.newVM("scsi0=" + s.place.storage + ":0,import-from=" + s.tiny(content[:len(content)/2]))
		got := s.driveIs("scsi0", s.config(id)["scsi0"])
		must.Hold(t, !onFiles(got.volid) || got.Size == itoa(tinyDiskBytes), "scsi0 is %+v", got)
		must.Hold(t, s.sim == nil || got.Bytes != sum(string(tinyDisk())), "nothing is missing")
	})
	story(t, "of an image that is not there", 0, func(t *testing.T, s *server) {
		s.takesImages()
		id, r := s.create("scsi0=" + s.place.storage + ":0,import-from=" + s.place.isoStorage + ":import/" + s.diskName())
		wantPrefix(t, fmt.Sprintf("unable to create VM %d - failed to stat '/", id), s.wait(r).Exit)
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
			got := s.as(test.token, http.MethodPut, s.vm(id, "config"), form)
			must.Hold(t, got.Status == test.want, "%s: %s, want %s", name, got.Status, test.want)
		}
	})
}

// TestClientDisks: recast's client puts disk images on a storage and finds them there.
func TestClientDisks(t *testing.T) {
	story(t, "uploads, lists and removes one", deleteISOs, func(t *testing.T, s *server) {
		s.takesImages()
		ctx, name, content := t.Context(), s.diskName(), tinyImage(t)
		s.clientUploadOK(name, content)
		file, found, err := s.client.DiskImage(ctx, s.place.node, s.place.isoStorage, name)
		same(t, fmt.Sprint(len(content), true, nil), fmt.Sprint(file.SizeBytes, found, err))
		list := must.Get(s.client.DiskImages(ctx, s.place.node, s.place.isoStorage))(t)
		var stored images.StoredISO
		for _, d := range list {
			if d.Name == name {
				stored = d
			}
		}
		same(t, int64(len(content)), stored.SizeBytes)
		why, err := s.client.MayImport(ctx, s.place.node, s.place.isoStorage)
		same(t, fmt.Sprint("", nil), fmt.Sprint(why, err))
		must.Do(t, s.client.DeleteISO(ctx, stored))
		_, found, err = s.client.DiskImage(ctx, s.place.node, s.place.isoStorage, name)
		same(t, fmt.Sprint(false, nil), fmt.Sprint(found, err))
	})
	story(t, "has the node download one, and makes a disk of it", simulated, func(t *testing.T, s *server) {
		s.fetches()
		ctx, name, content := t.Context(), s.diskName(), tinyImage(t)
		must.Do(t, s.client.Download(ctx, images.Download{
			Host: s.place.node, Storage: s.place.isoStorage, Name: name, URL: web(t, s) + "/disk.qcow2", SizeBytes: int64(len(content)), SHA256: sum(content),
		}))
		id := s.newVM()
		vm := must.Get(s.client.VM(ctx, cluster.VMID(id)))(t)
		must.Do(t, s.client.SetConfig(ctx, vm, map[string]string{"scsi1": s.place.storage + ":0,import-from=" + s.place.isoStorage + ":import/" + name + ",serial=system-1"}, nil))
		same(t, sum(string(tinyDisk())), s.driveIs("scsi1", s.config(id)["scsi1"]).Bytes)
	})
	story(t, "refuses a storage without the content type, with the reason", simulated, func(t *testing.T, s *server) {
		why, err := s.client.MayImport(t.Context(), s.place.node, s.place.storage)
		want := fmt.Sprintf("storage %q does not have the content type \"import\", which Proxmox VE has since 8.3: `pvesm set %s --content` sets the types", s.place.storage, s.place.storage)
		must.Hold(t, why == want && err == nil, "%s; %v", why, err)
		must.FailIs(t, must.Err(s.client.MayImport(t.Context(), s.place.node, "nosuch")), images.ErrNoStorage)
	})
}
