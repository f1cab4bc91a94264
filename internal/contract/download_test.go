package contract

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// download makes the node fetch a URL, without verification of certificates.
func (s *server) download(url, name string, form ...string) reply {
	s.t.Helper()
	path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
	return s.do(http.MethodPost, path, append([]string{"content=iso", "verify-certificates=0", "url=" + url, "filename=" + name}, form...)...)
}

func (s *server) downloadOK(url, name string, form ...string) ended {
	s.t.Helper()
	e := s.wait(s.download(url, name, form...))
	if e.Exit != "OK" {
		s.t.Fatalf("download ended with %q: %q", e.Exit, e.Log)
	}
	return e
}

func TestDownload(t *testing.T) {
	story(t, "stores what a URL points at", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		e := s.downloadOK(s.source(), name)
		same(t, "download", e.kind())
		if got := s.isoSize(s.place.node, s.place.isoStorage, name); got <= 0 {
			t.Errorf("%d bytes", got)
		}
	})
	story(t, "never replaces a file, and is done if that has the sum", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		s.uploadOK(iso(), file(name, "mine"))
		got := s.wait(s.download(nowhere, name)).Exit
		if !regexp.MustCompile(`^refusing to override existing file '/.*/` + name + `'$`).MatchString(got) {
			t.Error(got)
		}
		e := s.downloadOK(nowhere, name, "checksum-algorithm=sha256", "checksum="+sum("mine"))
		if !strings.Contains(strings.Join(e.Log, "\n"), "no need to download") {
			t.Errorf("log %q", e.Log)
		}
		got = s.wait(s.download(nowhere, name, "checksum-algorithm=sha256", "checksum="+sum("theirs"))).Exit
		if !strings.HasPrefix(got, fmt.Sprintf("checksum mismatch: got '%s' != expect '%s'", sum("mine"), sum("theirs"))) {
			t.Error(got)
		}
		s.wantISO(name, 4)
	})
	story(t, "keeps nothing of a file with another sum", 0, func(t *testing.T, s *server) {
		s.fetches()
		name := s.isoName()
		got := s.wait(s.download(s.source(), name, "checksum-algorithm=sha256", "checksum="+sum("theirs"))).Exit
		if !strings.HasPrefix(got, "checksum mismatch: got '") {
			t.Error(got)
		}
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
			if got := s.wait(s.download(url, name)).Exit; !strings.HasPrefix(got, "download failed: ") {
				t.Error(got)
			}
			s.wantISO(name, -1)
		})
	}
	story(t, "where the certificate is nobody's, unless told not to look", simulated, func(t *testing.T, s *server) {
		s.fetches()
		path := "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/download-url"
		got := s.task(http.MethodPost, path, "content=iso", "url="+s.source(), "filename="+s.isoName()).Exit
		if !strings.HasPrefix(got, "download failed: ") {
			t.Error(got)
		}
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
			if got.Status != refused || len(got.Errors) != 1 {
				t.Errorf("%s %v", got.Status, got.Errors)
			}
			for param, want := range test.errors {
				if !strings.HasPrefix(got.Errors[param], want) {
					t.Errorf("%s: %q, want %q", param, got.Errors[param], want)
				}
			}
		})
	}
	story(t, "a storage that is not for ISOs", simulated, func(t *testing.T, s *server) {
		s.fetches()
		got := s.do(http.MethodPost, "/nodes/pve1/storage/data/download-url", "content=iso", "filename=x.iso", "url=http://127.0.0.1/x.iso")
		wantRefusal(t, got, "500 storage 'data' is not configured for content-type 'iso'", nil)
	})
	story(t, "without the right to the node's network", poorToken, func(t *testing.T, s *server) {
		got := s.poor(http.MethodGet, "/nodes/"+s.place.node+"/query-url-metadata", "url="+s.place.endpoint+"/x.iso")
		wantRefusal(t, got, "403 Permission check failed", nil)
		got = s.poor(http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.isoStorage+"/download-url", "content=iso", "filename=x.iso", "url=http://127.0.0.1:1/")
		wantRefusal(t, got, "403 Permission check failed (/storage/"+s.place.isoStorage+", Datastore.AllocateTemplate)", nil)
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
			if left := s.used("local"); left != test.left {
				t.Errorf("%d bytes are left, want %d", left, test.left)
			}
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
		if got["filename"] != "metal-amd64.iso" || got["mimetype"] != "application/octet-stream" {
			t.Error(got)
		}
	})
	story(t, "gives up after three minutes", simulated, func(t *testing.T, s *server) {
		s.fetches()
		url, began := web(t, s)+"/silent.iso", time.Now()
		want := "500 invalid server response: '500 Can't connect to 127.42.9.200:80 (Connection timed out)'"
		wantRefusal(t, s.do(http.MethodGet, "/nodes/pve1/query-url-metadata", "url="+url), want, nil)
		if took := time.Since(began); took != 3*time.Minute {
			t.Errorf("after %v", took)
		}
	})
	story(t, "passes a refusal or a failed connection on", 0, func(t *testing.T, s *server) {
		s.fetches()
		for url, want := range map[string]string{s.beside("/nosuch/file.iso"): "'501 ", nowhere: "'500 Can't connect to 127.0.0.1:1"} {
			got := s.do(http.MethodGet, "/nodes/"+s.place.node+"/query-url-metadata", "verify-certificates=0", "url="+url)
			if !strings.HasPrefix(got.Status, "500 invalid server response: "+want) {
				t.Error(got.Status)
			}
		}
	})
}

func TestDeleteISO(t *testing.T) {
	path := func(s *server, name string) string {
		return "/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/content/" + escape(s.place.isoStorage+":iso/"+name)
	}
	story(t, "asks nobody who has it mounted", deleteISOs, func(t *testing.T, s *server) {
		name := s.isoName()
		s.uploadOK(iso(), file(name, strings.Repeat("x", 2048)))
		id := s.newVM("ide2=" + s.place.isoStorage + ":iso/" + name + ",media=cdrom")
		s.start(id)
		s.taskOK(http.MethodDelete, path(s, name))
		s.wantISO(name, -1)
		s.stop(id)
		want := fmt.Sprintf("volume '%s:iso/%s' does not exist", s.place.isoStorage, name)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/start")), want)
	})
	story(t, "is fine with one that is not there", deleteISOs, func(t *testing.T, s *server) {
		s.taskOK(http.MethodDelete, path(s, s.isoName()))
	})
	story(t, "needs Datastore.Allocate", poorToken, func(t *testing.T, s *server) {
		got := s.poor(http.MethodDelete, path(s, "nosuch.iso"))
		wantRefusal(t, got, "403 Permission check failed (/storage/"+s.place.isoStorage+", Datastore.Allocate)", nil)
	})
}

func TestStorageOffline(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.AddStorage(world.Storage{ID: "offline", Type: "nfs", Shared: true, Content: []string{"iso"}})
		s.sim.world.SetStorageActive("offline", "pve1", false)
		status := object(t, s.get("/nodes/pve1/storage/offline/status"))
		if text(status["active"]) != "0" || text(status["total"]) != "0" {
			t.Error(status)
		}
		wantRefusal(t, s.do(http.MethodGet, "/nodes/pve1/storage/offline/content"), "500 storage 'offline' is not online", nil)
		wantRefusal(t, s.uploadTo("pve1", "offline", iso(), file("x.iso", "x")), "500 storage 'offline' is not online", nil)
		wantExit(t, s.wait(s.uploadTo("pve2", "offline", iso(), file("x.iso", "x"))), "OK")
	})
}
