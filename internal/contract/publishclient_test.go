package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
)

// upload is content for the ISO storage of the node, in the form for recast's client.
func (s *server) clientUpload(name, content string) images.Upload {
	return images.Upload{
		Host: s.place.node, Storage: s.place.isoStorage, Name: name, SizeBytes: int64(len(content)), SHA256: sum(content),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil },
	}
}

func (s *server) clientUploadOK(name, content string) {
	s.t.Helper()
	must(s.t, s.client.Upload(s.t.Context(), s.clientUpload(name, content)))
}

// stored is the ISO as the client lists it, without its time.
func (s *server) stored(node, storage, name string) (images.StoredISO, bool) {
	s.t.Helper()
	isos, err := s.client.ISOs(s.t.Context(), node, storage)
	must(s.t, err)
	i := slices.IndexFunc(isos, func(iso images.StoredISO) bool { return iso.Name == name })
	if i < 0 {
		return images.StoredISO{}, false
	}
	if age := time.Since(isos[i].Changed); age < -time.Hour || age > time.Hour {
		s.t.Errorf("%s was changed %s ago", name, age)
	}
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
		must(t, s.client.Upload(t.Context(), u))
		size, found, err := s.client.ISO(t.Context(), u.Host, u.Storage, name)
		same(t, fmt.Sprint(u.SizeBytes, true, nil, u.SizeBytes), fmt.Sprint(size, found, err, last))
		got, _ := s.stored(u.Host, u.Storage, name)
		if diff := cmp.Diff(images.StoredISO{Host: u.Host, Storage: u.Storage, Name: name, SizeBytes: u.SizeBytes}, got); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
	})
	story(t, "stores nothing that has another checksum", 0, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), large)
		u.SHA256 = sum("other")
		err := s.client.Upload(t.Context(), u)
		if e, ok := errors.AsType[*api.TaskError](err); !ok || !strings.HasPrefix(e.Exit, "checksum mismatch: got '"+sum(large)) {
			t.Errorf("error is %v", err)
		}
		s.wantISO(u.Name, -1)
	})
	story(t, "is cancelled, and the next one succeeds", 0, func(t *testing.T, s *server) {
		ctx, cancel := context.WithCancel(t.Context())
		u := s.clientUpload(s.isoName(), large)
		u.Progress = func(int64) { cancel() }
		if err := s.client.Upload(ctx, u); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		s.clientUploadOK(u.Name, large)
		s.wantISO(u.Name, len(large))
	})
}

func TestClientUploadElsewhere(t *testing.T) {
	story(t, "goes to another node through this one", secondNode|deleteISOs, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), "somewhere else")
		u.Host = s.place.node2
		t.Cleanup(func() {
			if err := s.client.DeleteISO(context.WithoutCancel(t.Context()), images.StoredISO{Host: u.Host, Storage: u.Storage, Name: u.Name}); err != nil {
				t.Error(err)
			}
		})
		if err := s.client.Upload(t.Context(), u); err != nil {
			s.crosses(err.Error())
			t.Fatal(err)
		}
		if got, found := s.stored(u.Host, u.Storage, u.Name); !found || got.SizeBytes != u.SizeBytes {
			t.Errorf("%+v", got)
		}
	})
	story(t, "says which storage there is not", 0, func(t *testing.T, s *server) {
		u := s.clientUpload(s.isoName(), "x")
		u.Storage = "nosuch-storage"
		if err := s.client.Upload(t.Context(), u); err == nil {
			t.Error("no error")
		}
		s.holds("/storage/"+u.Storage, "Datastore.Audit")
		if _, err := s.client.Storage(t.Context(), u.Host, u.Storage); !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("error is %v", err)
		}
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
		if err := s.client.Download(t.Context(), s.clientDownload(name, "mine")); err != nil {
			t.Error(err)
		}
		if err := s.client.Download(t.Context(), s.clientDownload(name, "ours")); !errors.Is(err, images.ErrOtherContent) {
			t.Errorf("of another checksum: %v", err)
		}
		s.wantISO(name, 4)
	})
	story(t, "fails where nobody answers", 0, func(t *testing.T, s *server) {
		s.fetches()
		d := s.clientDownload(s.isoName(), "mine")
		if _, err := s.client.URLSize(t.Context(), d.Host, d.URL); err == nil {
			t.Error("its size is known")
		}
		err := s.client.Download(t.Context(), d)
		if _, failed := errors.AsType[*api.TaskError](err); !failed || errors.Is(err, images.ErrOtherContent) {
			t.Errorf("error is %v", err)
		}
		s.wantISO(d.Name, -1)
	})
	story(t, "fetches what has the checksum", simulated, func(t *testing.T, s *server) {
		s.fetches()
		link := web(t, s) + "/image.iso"
		for content, is := range map[string]error{"an image!": images.ErrOtherContent, "the image": nil} {
			d := s.clientDownload(s.isoName(), content)
			d.URL = link
			if size, err := s.client.URLSize(t.Context(), d.Host, d.URL); size != 9 || err != nil {
				t.Errorf("%d bytes, %v", size, err)
			}
			if err := s.client.Download(t.Context(), d); !errors.Is(err, is) {
				t.Errorf("error is %v, want %v", err, is)
			}
			want := -1
			if is == nil {
				want = 9
			}
			s.wantISO(d.Name, want)
		}
	})
	story(t, "knows what the token may not", poorToken, func(t *testing.T, s *server) {
		why, err := s.poorClient().MayDownload(t.Context(), s.place.node, s.place.isoStorage)
		if want := "the token has no Datastore.AllocateTemplate on /storage/" + s.place.isoStorage; why != want || err != nil {
			t.Errorf("%q, %v", why, err)
		}
		s.fetches()
		if why, err := s.client.MayDownload(t.Context(), s.place.node, s.place.isoStorage); why != "" || err != nil {
			t.Errorf("with the token of the suite: %q, %v", why, err)
		}
	})
}

// poorClient is recast's client with the token without permissions.
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
	must(s.t, err)
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
		if by := s.uses(name); by != nil {
			t.Errorf("before: %v", by)
		}
		id := s.newVM("ide2=" + volid + ",media=cdrom")
		vm := s.read(id).String()
		wantUses := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, s.uses(name)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
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
		if uses, err := s.poorClient().Uses(t.Context()); fault.KindOf(err) != fault.Refused {
			t.Errorf("%v, error %v", uses, err)
		}
	})
}

func TestClientDeleteISO(t *testing.T) {
	story(t, "deletes it, also while a VM has it in a drive, and also twice", deleteISOs, func(t *testing.T, s *server) {
		name := s.isoName()
		s.clientUploadOK(name, "iso")
		s.newVM("ide2=" + s.place.isoStorage + ":iso/" + name + ",media=cdrom")
		for range 2 {
			if err := s.client.DeleteISO(t.Context(), images.StoredISO{Host: s.place.node, Storage: s.place.isoStorage, Name: name}); err != nil {
				t.Error(err)
			}
			s.wantISO(name, -1)
		}
	})
}
