package world

import "slices"

// IsPrivilege says whether Proxmox VE 9.2 knows a privilege of that name.
func IsPrivilege(name string) bool { return slices.Contains(allPrivileges, name) }

// Role lists a role's privileges; nil if there is none of that name.
func (w *World) Role(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.role(name))
}

// HasRole says whether there is a role of that name.
func (w *World) HasRole(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, found := w.roles[name]
	return found || name == Administrator || name == NoAccess
}

// DeleteRole removes a role. Entries that name it grant nothing any more.
func (w *World) DeleteRole(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.roles, name)
	w.held = nil
}
