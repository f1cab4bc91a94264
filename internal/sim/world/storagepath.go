package world

import "strings"

// Path is the directory of a storage of files; "" for others.
func (s Storage) Path() string {
	switch {
	case (&storage{Storage: s}).block(), s.Type == "pbs", s.Type == "esxi":
		return ""
	case s.ID == "local":
		return "/var/lib/vz"
	}
	return "/mnt/pve/" + s.ID
}

// filePath is the path of the volume with this name.
func (s *storage) filePath(name string) string {
	if s.Path() == "" {
		return "/dev/" + s.ID + "/" + name
	}
	dir, file, _ := strings.Cut(name, "/")
	switch dir {
	case "iso":
		return s.Path() + "/template/iso/" + file
	case "vztmpl":
		return s.Path() + "/template/cache/" + file
	case "import":
		return s.Path() + "/import/" + file
	}
	return s.Path() + "/images/" + name
}

// SetStorageActive sets whether a host can reach one of its storages.
func (w *World) SetStorageActive(id, host string, active bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.offline[host] = !active
	}
}

// activate is activate_storage of pve-storage's Storage.pm and its plugins, which precedes
// any use of a storage.
func (s *storage) activate(host string) error {
	switch {
	case !s.offline[host]:
		return nil
	case s.block():
		return failf("activating storage '%s' failed", s.ID)
	case s.Type == "dir" || s.Type == "btrfs":
		return failf("unable to activate storage '%s' - directory '%s' does not exist or is unreachable", s.ID, s.Path())
	}
	return failf("storage '%s' is not online", s.ID)
}
