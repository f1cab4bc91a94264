package world

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// Administrator is the built-in role that holds every privilege.
	Administrator = "Administrator"
	// NoAccess is the built-in role that revokes everything else that is granted.
	NoAccess = "NoAccess"
)

// Token is an API token. With privilege separation, a token has the permissions that both its own ACLs and its user's
// ACLs grant; without privilege separation, a token has its user's permissions.
type Token struct {
	ID      string // "recast@pve!lab"
	Secret  string // a UUID
	Privsep bool
	Expired bool // by time, until its lifetime is extended
}

// ACL gives a user or token a role at a path.
type ACL struct {
	Path      string // "/", "/vms/9011", "/storage/fast", "/pool/talos"
	Who       string // "recast@pve" or "recast@pve!lab"
	Role      string
	Propagate bool
}

// setAccess makes a change after which privileges are computed anew.
func (w *World) setAccess(change func()) { w.set(func() { change(); w.privilegeCache = nil }) }

func (w *World) AddToken(t Token) { w.setAccess(func() { w.tokens[t.ID] = t }) }

// ExpireToken sets whether a token has expired.
func (w *World) ExpireToken(id string, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.tokens[id]; ok {
		t.Expired = over
		w.tokens[id] = t
	}
}

func (w *World) AddRole(name string, privileges ...string) {
	w.setAccess(func() { w.roles[name] = privileges })
}

// Grant adds an entry to the access control list.
func (w *World) Grant(a ACL) { w.setAccess(func() { w.acls = append(w.acls, a) }) }

// Revoke removes an entry from the access control list.
func (w *World) Revoke(a ACL) {
	w.setAccess(func() { w.acls = slices.DeleteFunc(w.acls, func(b ACL) bool { return a == b }) })
}

// ACLs lists the access control list by path and user.
func (w *World) ACLs() []ACL {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(slices.Values(w.acls), func(a, b ACL) int {
		return strings.Compare(a.Path+" "+a.Who+" "+a.Role, b.Path+" "+b.Who+" "+b.Role)
	})
}

// Check returns nil when user holds any of the privileges at path, else the 403 answer that names them. The user ""
// is the lab itself and may do everything.
func (w *World) Check(user, path string, anyOf ...string) error {
	return look(w, func() error { return w.check(user, path, anyOf...) })
}

// Permissions returns the set of privileges of user at a path, which need not exist. The values say whether a
// privilege propagates to the paths below.
func (w *World) Permissions(user, path string) map[string]bool {
	return look(w, func() map[string]bool { return maps.Clone(w.privileges(user, path)) })
}

// EffectivePermissions returns the set of privileges of user at every path in Proxmox's own list: the top-level
// paths, the paths in the tree of the access control list and the members of pools. Paths where user holds no
// privilege are left out (pve-access-control, RPCEnvironment.pm, get_effective_permissions).
func (w *World) EffectivePermissions(user string) map[string]map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	paths := []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"}
	for _, a := range w.acls {
		for at := a.Path; at != "/"; at = parent(at) {
			paths = append(paths, at)
		}
	}
	for id, v := range w.vms {
		if v.pool != "" {
			paths = append(paths, vmPath(id))
		}
	}
	all := map[string]map[string]bool{}
	for _, path := range paths {
		if privs := w.privileges(user, path); len(privs) > 0 {
			all[path] = maps.Clone(privs)
		}
	}
	return all
}

func (w *World) check(user, path string, anyOf ...string) error {
	if user == "" {
		return nil
	}
	held := w.privileges(user, path)
	if slices.ContainsFunc(anyOf, func(p string) bool { _, has := held[p]; return has }) {
		return nil
	}
	return denied(path, strings.Join(anyOf, "|"))
}

// holder is a user or token at a path; pool is the pool of the path's VM.
type holder struct{ user, path, pool string }

// privileges returns the set of privileges of user at path; the values say which privileges propagate. The set is
// cached until a token, a role or the access control list changes; the caller must not change the map.
func (w *World) privileges(user, path string) map[string]bool {
	at := holder{user, path, w.poolOf(path)}
	held, known := w.privilegeCache[at]
	if !known {
		held = w.compilePrivileges(user, path)
		if w.privilegeCache == nil {
			w.privilegeCache = map[holder]map[string]bool{}
		}
		w.privilegeCache[at] = held
	}
	return held
}

// compilePrivileges computes the privileges of user at path. A token with privilege separation holds the privileges
// that both the token and its user were granted.
func (w *World) compilePrivileges(user, path string) map[string]bool {
	owner, _, isToken := strings.Cut(user, "!")
	if isToken && w.tokens[user].ID == "" {
		return map[string]bool{}
	}
	var ofOwner map[string]bool
	if owner == "root@pam" {
		ofOwner = toSet(allPrivileges)
	} else {
		ofOwner = w.privilegesOf(owner, path)
	}
	if !isToken || !w.tokens[user].Privsep {
		return ofOwner
	}
	both := map[string]bool{}
	for p, propagates := range w.privilegesOf(user, path) {
		if ofOwners, has := ofOwner[p]; has {
			both[p] = propagates && ofOwners
		}
	}
	return both
}

// privilegesOf returns the privileges of one name's roles at path (RPCEnvironment.pm, $compile_acl_path).
func (w *World) privilegesOf(who, path string) map[string]bool {
	held := map[string]bool{}
	for role, propagates := range w.rolesAt(who, path) {
		for _, p := range w.role(role) {
			held[p] = held[p] || propagates
		}
	}
	return held
}

// rolesAt returns the set of roles of one name at path, including the roles at a VM through its pool: roles through a
// pool never propagate, and NoAccess in either set wins.
func (w *World) rolesAt(who, path string) map[string]bool {
	roles := w.rolesOf(who, path)
	pool := w.poolOf(path)
	if _, none := roles[NoAccess]; none || pool == "" {
		return roles
	}
	ofPool := w.rolesOf(who, "/pool/"+pool)
	if _, none := ofPool[NoAccess]; none {
		return ofPool
	}
	for role := range ofPool {
		if _, has := roles[role]; !has {
			roles[role] = false
		}
	}
	return roles
}

// rolesOf evaluates the access control list for one name: only the most specific path with an entry counts, and an
// entry that does not propagate counts only at its own path (AccessControl.pm, roles).
func (w *World) rolesOf(who, path string) map[string]bool {
	for at := path; ; at = parent(at) {
		roles := map[string]bool{}
		for _, a := range w.acls {
			if a.Who == who && a.Path == at && (at == path || a.Propagate) {
				roles[a.Role] = roles[a.Role] || a.Propagate
			}
		}
		if propagates, none := roles[NoAccess]; none {
			return map[string]bool{NoAccess: propagates}
		}
		if len(roles) > 0 || at == "/" {
			return roles
		}
	}
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
		return allPrivileges
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

var allPrivileges = strings.Fields(`Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit
	Group.Allocate Mapping.Audit Mapping.Modify Mapping.Use Permissions.Modify Pool.Allocate Pool.Audit Realm.Allocate
	Realm.AllocateUser SDN.Allocate SDN.Audit SDN.Use Sys.AccessNetwork Sys.Audit Sys.Console Sys.Incoming Sys.Modify
	Sys.PowerMgmt Sys.Syslog User.Modify VM.Allocate VM.Audit VM.Backup VM.Clone VM.Config.CDROM VM.Config.CPU
	VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.Console
	VM.GuestAgent.Audit VM.GuestAgent.FileRead VM.GuestAgent.FileSystemMgmt VM.GuestAgent.FileWrite
	VM.GuestAgent.Unrestricted VM.Migrate VM.PowerMgmt VM.Replicate VM.Snapshot VM.Snapshot.Rollback`)

// IsPrivilege reports whether Proxmox VE 9.2 has a privilege of that name.
func IsPrivilege(name string) bool { return slices.Contains(allPrivileges, name) }

// Role lists a role's privileges; nil if the role does not exist.
func (w *World) Role(name string) []string {
	return look(w, func() []string { return slices.Clone(w.role(name)) })
}

func (w *World) HasRole(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, found := w.roles[name]
	return found || name == Administrator || name == NoAccess
}

// DeleteRole removes a role. Entries that name it no longer grant anything.
func (w *World) DeleteRole(name string) { w.setAccess(func() { delete(w.roles, name) }) }

// ticketLife is the lifetime of a ticket and its CSRF prevention token (AccessControl.pm).
const ticketLife = 2 * time.Hour

// Ticket is the result of a login.
type Ticket struct{ Ticket, CSRF string }

// SetPassword adds a user with a password; id is "name@realm".
func (w *World) SetPassword(id, password string) { w.set(func() { w.passwords[id] = password }) }

// Login issues a ticket. The password may be a valid ticket.
func (w *World) Login(user, password string) (Ticket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.passwords[user]
	right := ok && subtle.ConstantTimeCompare([]byte(known), []byte(password)) == 1
	if holder, err := w.verifyTicket(password); err == nil && holder == user {
		right = true
	}
	if !right {
		return Ticket{}, &Error{Status: 401, Message: "authentication failure"} // the answer does not reveal which users exist
	}
	now := time.Now()
	return Ticket{Ticket: w.sign("PVE:"+user, now), CSRF: w.sign(user, now)}, nil
}

func (w *World) VerifyTicket(ticket string) (user string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.verifyTicket(ticket)
}

func (w *World) verifyTicket(ticket string) (user string, err error) {
	content, ok := w.verify(ticket)
	user, isTicket := strings.CutPrefix(content, "PVE:")
	if !ok || !isTicket {
		return "", &Error{Status: 401, Message: "permission denied - invalid PVE ticket"}
	}
	return user, nil
}

// VerifyCSRF checks the header that every change with a ticket needs.
func (w *World) VerifyCSRF(user, token string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if content, ok := w.verify(token); !ok || content != user {
		return &Error{Status: 401, Message: "Permission denied - invalid csrf token"}
	}
	return nil
}

// VerifyToken says what is wrong with an API token, in the order of AccessControl.pm.
func (w *World) VerifyToken(id, secret string) error {
	w.mu.Look()
	defer w.mu.Unlock()
	user, name, _ := strings.Cut(id, "!")
	t, ok := w.tokens[id]
	switch {
	case !w.isUser(user):
		return &Error{Status: 401, Message: fmt.Sprintf("no such user ('%s')", user)}
	case !ok:
		return &Error{Status: 401, Message: fmt.Sprintf("no such token '%s' for user '%s'", name, user)}
	case t.Expired:
		return &Error{Status: 401, Message: "token expired"}
	case subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) != 1:
		return &Error{Status: 401, Message: "invalid token value!"}
	}
	return nil
}

func (w *World) isUser(user string) bool {
	if _, ok := w.passwords[user]; ok || user == "root@pam" {
		return true
	}
	for id := range w.tokens {
		if strings.HasPrefix(id, user+"!") {
			return true
		}
	}
	return false
}

// sign makes "content:HEXTIME::signature".
func (w *World) sign(content string, at time.Time) string {
	text := fmt.Sprintf("%s:%08X", content, at.Unix())
	return text + "::" + base64.StdEncoding.EncodeToString(w.signature(text))
}

func (w *World) signature(text string) []byte {
	if w.ticketKey == nil {
		w.ticketKey = []byte(rand.Text())
	}
	h := hmac.New(sha256.New, w.ticketKey)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// verify returns the signed content, unless it has expired.
func (w *World) verify(signed string) (content string, ok bool) {
	text, signature, _ := strings.Cut(signed, "::")
	got, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(got, w.signature(text)) {
		return "", false
	}
	i := strings.LastIndex(text, ":")
	seconds, err := strconv.ParseInt(text[i+1:], 16, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)) > ticketLife {
		return "", false
	}
	return text[:i], true
}
