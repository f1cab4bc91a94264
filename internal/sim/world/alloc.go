package world

import (
	"path"
	"strconv"
	"strings"
)

// AllocRequest asks for a disk outside of any VM's configuration.
type AllocRequest struct {
	Storage string
	VMID    int
	Name    string // "vm-100-disk-9.raw", on block storages without the extension
	Bytes   int64
	Format  string
}

// AllocDisk makes a disk and returns its volid. The VM need not exist.
func (w *World) AllocDisk(user, host string, r AllocRequest) (volid string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, "/storage/"+r.Storage, "Datastore.AllocateSpace"); err != nil {
		return "", err
	}
	s, err := w.storageOn(r.Storage, host)
	if err != nil {
		return "", err
	}
	name := r.Name
	if !s.block() {
		if path.Ext(name) == "" {
			return "", failf("unable to parse volume filename '%s'", name)
		}
		if r.Format != "" && !strings.HasSuffix(name, "."+r.Format) {
			return "", failf("illegal name '%s' - wrong extension for format ('%s != '%s')", name, path.Ext(name)[1:], r.Format)
		}
		name = strconv.Itoa(r.VMID) + "/" + name
	} else if volumeOwner(name) != r.VMID {
		return "", failf("illegal name '%s' - should be 'vm-%d-*'", name, r.VMID)
	}
	if s.at(host)[name] != nil {
		return "", failf("disk image '%s' already exists", name)
	}
	return w.allocateNamed(s, host, name, r.Bytes, NewMedia(nil))
}
