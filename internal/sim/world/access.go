package world

import (
	"crypto/subtle"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Administrator is the built-in role that holds every privilege.
const Administrator = "Administrator"

// Token is an API token. What it may do comes from ACLs: its own if it is
// privilege-separated (and then never more than its user may), else its user's.
type Token struct {
	ID      string // "recast@pve!lab"
	Secret  string // a UUID
	Privsep bool
}

// ACL gives a user or token a role at a path.
type ACL struct {
	Path      string // "/", "/vms/9011", "/storage/fast", "/pool/talos"
	Who       string // "recast@pve" or "recast@pve!lab"
	Role      string
	Propagate bool
}

// AddToken makes an API token.
func (w *World) AddToken(t Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens[t.ID] = t
}

// AddRole defines a role.
func (w *World) AddRole(name string, privileges ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.roles[name] = privileges
}

// Grant adds an entry to the access control list.
func (w *World) Grant(a ACL) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acls = append(w.acls, a)
}

// Revoke removes an entry from the access control list.
func (w *World) Revoke(a ACL) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acls = slices.DeleteFunc(w.acls, func(b ACL) bool { return a == b })
}

// ACLs lists the access control list by path and user.
func (w *World) ACLs() []ACL {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(slices.Values(w.acls), func(a, b ACL) int {
		return strings.Compare(a.Path+" "+a.Who+" "+a.Role, b.Path+" "+b.Who+" "+b.Role)
	})
}

// Authenticate says whether that token exists with that secret.
func (w *World) Authenticate(id, secret string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.tokens[id]
	return ok && subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) == 1
}

// Check is nil when user holds any of the privileges at path, else the 403
// answer that names them. The user "" is the lab itself and may do everything.
func (w *World) Check(user, path string, anyOf ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.check(user, path, anyOf...)
}

// Permissions lists what user holds at every path that matters and at the
// extra ones, as /access/permissions shows it.
func (w *World) Permissions(user string, extra ...string) map[string][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	paths := append([]string{"/", "/access", "/nodes", "/pool", "/sdn", "/storage", "/vms"}, extra...)
	for _, a := range w.acls {
		paths = append(paths, a.Path)
	}
	for pool := range w.pools {
		paths = append(paths, "/pool/"+pool)
	}
	for id := range w.storages {
		paths = append(paths, "/storage/"+id)
	}
	all := map[string][]string{}
	for _, path := range paths {
		if privs := w.privileges(user, path); len(privs) > 0 {
			all[path] = slices.Sorted(maps.Keys(privs))
		}
	}
	return all
}

func (w *World) check(user, path string, anyOf ...string) error {
	if user == "" {
		return nil
	}
	held := w.privileges(user, path)
	if slices.ContainsFunc(anyOf, func(p string) bool { return held[p] }) {
		return nil
	}
	return denied(path, strings.Join(anyOf, "|"))
}

// privileges is the set that user holds at path.
func (w *World) privileges(user, path string) map[string]bool {
	owner, _, isToken := strings.Cut(user, "!")
	ofOwner := w.privilegesOf(owner, path)
	if owner == "root@pam" {
		ofOwner = toSet(allPrivileges())
	}
	if !isToken || !w.tokens[user].Privsep {
		return ofOwner
	}
	own := w.privilegesOf(user, path)
	maps.DeleteFunc(own, func(p string, _ bool) bool { return !ofOwner[p] })
	return own
}

// privilegesOf follows the list of one name: at the most specific path with an
// entry its roles count, those of shorter paths no longer. A VM in a pool also
// has what is granted on the pool.
func (w *World) privilegesOf(who, path string) map[string]bool {
	held := map[string]bool{}
	for at := path; ; at = parent(at) {
		found := false
		for _, a := range w.acls {
			if a.Who == who && a.Path == at && (at == path || a.Propagate) {
				found = true
				maps.Copy(held, toSet(w.role(a.Role)))
			}
		}
		if found || at == "/" {
			break
		}
	}
	if pool := w.poolOf(path); pool != "" {
		maps.Copy(held, w.privilegesOf(who, "/pool/"+pool))
	}
	return held
}

func (w *World) poolOf(path string) string {
	number, isVM := strings.CutPrefix(path, "/vms/")
	id, err := strconv.Atoi(number)
	if !isVM || err != nil || w.vms[id] == nil {
		return ""
	}
	return w.vms[id].pool
}

func (w *World) role(name string) []string {
	if name == Administrator {
		return allPrivileges()
	}
	return w.roles[name]
}

func parent(path string) string {
	i := strings.LastIndex(path, "/")
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

func toSet(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

func allPrivileges() []string {
	return strings.Fields(`Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit
		Group.Allocate Mapping.Audit Mapping.Modify Mapping.Use Permissions.Modify Pool.Allocate Pool.Audit Realm.Allocate
		Realm.AllocateUser SDN.Allocate SDN.Audit SDN.Use Sys.AccessNetwork Sys.Audit Sys.Console Sys.Incoming Sys.Modify
		Sys.PowerMgmt Sys.Syslog User.Modify VM.Allocate VM.Audit VM.Backup VM.Clone VM.Config.CDROM VM.Config.CPU
		VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.Console
		VM.GuestAgent.Audit VM.GuestAgent.FileRead VM.GuestAgent.FileSystemMgmt VM.GuestAgent.FileWrite
		VM.GuestAgent.Unrestricted VM.Migrate VM.PowerMgmt VM.Replicate VM.Snapshot VM.Snapshot.Rollback`)
}
