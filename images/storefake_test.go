package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// store is the storages of some hosts, by "host/storage"; shared ones have one map of ISOs.
type store struct {
	storages map[string]*storage
	changes  []string
	fail     error
	uses     []Use
	blind    error // the token does not see every VM
	held     bool  // nothing may be changed now

	mayNot    string                              // why the token may not make hosts download
	urls      map[string][]byte                   // what hosts download from where; others are unreachable
	breakDown func(d Download, data []byte) error // before a download is stored; may be nil
	offline   []string
}

type storage struct {
	StorageInfo
	isos    map[string][]byte
	changed map[string]time.Time
}

func newStore() *store {
	iso := []string{"iso", "vztmpl"}
	one := func(shared bool, content ...string) *storage {
		return &storage{StorageInfo{true, shared, content, 1 << 20}, map[string][]byte{}, map[string]time.Time{}}
	}
	s := &store{storages: map[string]*storage{}, mayNot: "the token has nothing", urls: map[string][]byte{}}
	shared := one(true, iso...)
	for _, host := range []string{"pve1", "pve2"} {
		s.storages[host+"/cephfs"] = shared
		s.storages[host+"/local"] = one(false, iso...)
		s.storages[host+"/fast"] = one(false, "images")
	}
	return s
}

func (s *store) Storage(_ context.Context, host, name string) (StorageInfo, error) {
	st, ok := s.storages[host+"/"+name]
	if !ok {
		return StorageInfo{}, fmt.Errorf("%s on %s: %w", name, host, ErrNoStorage)
	}
	return st.StorageInfo, s.fail
}

func (s *store) ISO(_ context.Context, host, name, iso string) (int64, bool, error) {
	data, ok := s.storages[host+"/"+name].isos[iso]
	return int64(len(data)), ok, s.fail
}

// DiskImage: a name ends in .qcow2 or in .iso, so that one map holds both.
func (s *store) DiskImage(ctx context.Context, host, name, disk string) (int64, bool, error) {
	return s.ISO(ctx, host, name, disk)
}

func (s *store) Upload(_ context.Context, u Upload) error {
	body, err := u.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if u.Progress != nil {
		u.Progress(int64(len(data)))
	}
	if hash(data) != u.SHA256 || int64(len(data)) != u.SizeBytes {
		return errors.New("checksum mismatch")
	}
	s.storages[u.Host+"/"+u.Storage].isos[u.Name] = data
	s.changes = append(s.changes, "upload "+u.Host+"/"+u.Storage+" "+u.Name)
	return nil
}

func (s *store) Uses(context.Context) ([]Use, error) { return s.uses, s.blind }

func (s *store) MayDownload(context.Context, string, string) (string, error) { return s.mayNot, s.fail }

var errNoRoute = errors.New("500 can't connect")

func (s *store) URLSize(_ context.Context, _, url string) (int64, error) {
	data, ok := s.urls[url]
	if !ok {
		return 0, errNoRoute
	}
	return int64(len(data)), nil
}

// Download compares an existing file before it looks at the URL, as Proxmox does.
func (s *store) Download(_ context.Context, d Download) error {
	if s.held {
		return ErrNotSent
	}
	at := s.storages[d.Host+"/"+d.Storage]
	if have, ok := at.isos[d.Name]; ok {
		s.changes = append(s.changes, "compare "+d.Host+"/"+d.Storage+" "+d.Name)
		if hash(have) != d.SHA256 {
			return ErrOtherContent
		}
		return nil
	}
	data, ok := s.urls[d.URL]
	if !ok {
		return errNoRoute
	}
	s.changes = append(s.changes, "download "+d.Host+"/"+d.Storage+" "+d.Name)
	if s.breakDown != nil {
		if err := s.breakDown(d, data); err != nil {
			return err
		}
	}
	if hash(data) != d.SHA256 {
		return ErrOtherContent
	}
	at.isos[d.Name] = data
	return nil
}

func (s *store) Nodes(context.Context) (online, offline []string, err error) {
	for name := range s.storages {
		host, _, _ := strings.Cut(name, "/")
		if !slices.Contains(online, host) && !slices.Contains(s.offline, host) {
			online = append(online, host)
		}
	}
	slices.Sort(online)
	return online, s.offline, s.fail
}

func (s *store) ISOs(_ context.Context, host, name string) ([]StoredISO, error) {
	return s.list(host, name, ".iso")
}

func (s *store) list(host, name, end string) ([]StoredISO, error) {
	at := s.storages[host+"/"+name]
	var isos []StoredISO
	for _, iso := range slices.Sorted(maps.Keys(at.isos)) {
		if strings.HasSuffix(iso, ".iso") && end != ".iso" || strings.HasSuffix(iso, ".qcow2") && end != ".qcow2" {
			continue
		}
		isos = append(isos, StoredISO{Host: host, Storage: name, Name: iso, SizeBytes: int64(len(at.isos[iso])), Changed: at.changed[iso]})
	}
	return isos, s.fail
}

func (s *store) DiskImages(_ context.Context, host, name string) ([]StoredISO, error) {
	return s.list(host, name, ".qcow2")
}

func (s *store) DeleteISO(_ context.Context, iso StoredISO) error {
	delete(s.storages[iso.Host+"/"+iso.Storage].isos, iso.Name)
	s.changes = append(s.changes, "delete "+iso.String())
	return s.fail
}
