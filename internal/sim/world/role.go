package world

import "slices"

// IsPrivilege says whether Proxmox VE 9.2 has that privilege.
func IsPrivilege(name string) bool { return slices.Contains(allPrivileges, name) }

// Role lists a role's privileges; nil if there is no such role.
func (w *World) Role(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.role(name))
}

// HasRole says whether a role exists.
func (w *World) HasRole(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, found := w.roles[name]
	return found || name == Administrator || name == NoAccess
}

// DeleteRole removes a role. Entries that name it no longer grant anything.
func (w *World) DeleteRole(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.roles, name)
	w.privilegeCache = nil
}
