package world

import (
	"cmp"
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.looking()()
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

func vmPath(id int) string { return "/vms/" + strconv.Itoa(id) }

// checkVM checks a privilege on a VM. For a VM that is to be created in a pool, a privilege on the pool suffices.
func (w *World) checkVM(user string, id int, pool, privilege string) error {
	err := w.check(user, vmPath(id), privilege)
	if err != nil && pool != "" && w.check(user, "/pool/"+pool, privilege) == nil {
		return nil
	}
	return err
}

// optionPrivilege returns the privilege to change an option whatever its value; "" if only the real root@pam may.
func optionPrivilege(key string) string {
	switch optionName(key) {
	case "boot", "bootdisk", "vmstatestorage":
		return "VM.Config.Disk"
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "numa#", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios1", "tablet", "vga", "watchdog":
		return "VM.Config.HWType"
	case "net":
		return "VM.Config.Network"
	case "freeze":
		return "VM.PowerMgmt"
	case "affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages",
		"lock", "parallel", "spice_enhancements", "vmgenid":
		return ""
	}
	return "VM.Config.Options"
}

// asksForValue reports whether the required privilege depends on the option's value. The value is checked later.
func asksForValue(key string) bool {
	return isDriveKey(key) || slices.Contains([]string{"serial", "usb", "hostpci", "virtiofs", "tags"}, optionName(key))
}

// checkKeys checks every key that is set or deleted, except keys whose required privilege depends on their value
// (check_vm_modify_config_perm in Qemu.pm).
func (w *World) checkKeys(user string, id int, pool string, keys []string) error {
	if user == "" || user == "root@pam" {
		return nil
	}
	for _, key := range keys {
		if asksForValue(key) {
			continue
		}
		if isCloudInitOption(key) {
			if w.checkVM(user, id, pool, "VM.Config.Cloudinit") != nil && w.checkVM(user, id, pool, "VM.Config.Network") != nil {
				return denied(vmPath(id), "VM.Config.Cloudinit|VM.Config.Network")
			}
			continue
		}
		privilege := optionPrivilege(key)
		if privilege == "" {
			return failf("only root can set '%s' config", key)
		}
		err := w.checkVM(user, id, pool, privilege)
		if err == nil && key == "startup" {
			err = w.check(user, "/", "Sys.Modify")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isCloudInitOption(key string) bool {
	names := []string{"ipconfig", "nameserver", "searchdomain", "cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "sshkeys"}
	return slices.Contains(names, optionName(key))
}

// checkDevice checks options whose value matters: a drive, a port, a device of the host.
// verb is the action: "set", "modify" or "delete".
func (w *World) checkDevice(user string, id int, pool, key, value, verb string) error {
	if user == "" || user == "root@pam" {
		return nil
	}
	if isDriveKey(key) {
		return w.checkDriveRight(user, id, pool, key, value)
	}
	mapping := property(value, "mapping")
	switch optionName(key) {
	case "serial":
		if value != "socket" {
			return failf("only root can %s '%s' config for real devices", verb, key)
		}
		return w.checkVM(user, id, pool, "VM.Config.HWType")
	case "usb":
		if err := w.checkVM(user, id, pool, "VM.Config.HWType"); err != nil || isSpice(value) {
			return err
		}
		if mapping == "" {
			return failf("only root can set '%s' config for real devices", key)
		}
		return w.check(user, "/mapping/usb/"+mapping, "Mapping.Use")
	case "hostpci":
		if mapping == "" {
			return failf("only root can set '%s' config for non-mapped devices", key)
		}
		return firstError(w.check(user, "/mapping/pci/"+mapping, "Mapping.Use"), w.checkVM(user, id, pool, "VM.Config.HWType"))
	case "rng":
		if property("source="+strings.TrimPrefix(value, "source="), "source") == "/dev/hwrng" {
			return w.check(user, "/mapping/hwrng", "Mapping.Use")
		}
	case "virtiofs":
		directory, _, _ := strings.Cut(strings.TrimPrefix(value, "dirid="), ",")
		return firstError(w.checkVM(user, id, pool, "VM.Config.Disk"), w.check(user, "/mapping/dir/"+directory, "Mapping.Use"))
	case "tags":
		return w.checkTags(user, id, pool, w.vms[id].config["tags"], value)
	}
	return nil
}

func isSpice(usb string) bool {
	host, _, _ := strings.Cut(strings.TrimPrefix(usb, "host="), ",")
	return strings.EqualFold(host, "spice")
}

// checkDriveRight checks the privilege for a drive: a CD-ROM drive needs another privilege than a disk, and a
// cloud-init drive needs an additional one.
func (w *World) checkDriveRight(user string, id int, pool, key, value string) error {
	d, err := parseDrive(key, value)
	switch {
	case err != nil:
		return err
	case isCloudInit(d.volid):
		return firstError(w.checkVM(user, id, pool, "VM.Config.Cloudinit"), w.checkVM(user, id, pool, "VM.Config.CDROM"))
	case d.cdrom():
		return w.checkVM(user, id, pool, "VM.Config.CDROM")
	}
	return w.checkVM(user, id, pool, "VM.Config.Disk")
}

func (w *World) checkBridges(user string, set map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		bridge := property(set[key], "bridge")
		if optionName(key) != "net" || bridge == "" {
			continue
		}
		if err := w.check(user, "/sdn/zones/"+w.zoneOf(bridge)+"/"+bridge, "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}

func isCDROM(key, value string) bool {
	d, err := parseDrive(key, value)
	return isDriveKey(key) && err == nil && d.cdrom()
}

// checkDrives checks the form of drives that are set ($check_drive_param in Qemu.pm).
func checkDrives(set map[string]string) error {
	for _, key := range driveKeys(set) {
		if strings.HasPrefix(key, "unused") {
			continue
		}
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if d.options["import-from"] != "" {
			if err := checkImportForm(key, d); err != nil {
				return err
			}
		}
		if _, name, _ := strings.Cut(d.volid, ":"); strings.HasPrefix(name, "iso/") && d.options["media"] != "cdrom" {
			return BadParam(key, "explicit 'media=cdrom' is required for iso images")
		}
	}
	return nil
}

// checkVolumes checks the volumes of drives that are set: the space for new volumes, and the access to existing
// volumes ($check_storage_access in Qemu.pm).
func (w *World) checkVolumes(user string, id int, set map[string]string) error {
	for _, key := range driveKeys(set) {
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if err := w.checkDriveVolume(user, id, key, d); err != nil {
			return err
		}
		if source := d.options["import-from"]; source != "" {
			if err := w.checkSource(user, id, key, source); err != nil {
				return err
			}
		}
	}
	if storageID := set["vmstatestorage"]; storageID != "" {
		return w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace")
	}
	return nil
}

func (w *World) checkDriveVolume(user string, id int, key string, d drive) error {
	storageID, _, isRequest := d.request()
	switch {
	case d.volid == "none", isRequest && isCloudInit(d.volid):
		return nil
	case d.volid == "cdrom":
		return w.check(user, "/", "Sys.Console")
	case !isRequest:
		return w.checkAttached(user, id, key, d.volid)
	}
	if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	s, known := w.storages[storageID]
	if !known {
		return failf("storage '%s' does not exist", storageID)
	}
	if !s.holds("images") {
		return BadParam("storage", "storage '%s' does not support vm images", storageID)
	}
	return nil
}

// checkAttached checks the access to an existing volume, and that the volume can be a drive.
func (w *World) checkAttached(user string, id int, key, volid string) error {
	if err := w.checkVolume(user, id, volid); err != nil || !strings.Contains(volid, ":") {
		return err
	}
	if _, kind, _, err := w.kindOf(volid); err != nil || !attachable(kind) {
		return cmp.Or(err, BadParam(key, "content type needs to be 'images' or 'iso'"))
	}
	return nil
}

// checkVolume makes the check before a volume is attached to VM id, or shown (id 0) (check_volume_access in
// Storage.pm).
func (w *World) checkVolume(user string, id int, volid string) error {
	storageID, _, ok := strings.Cut(volid, ":")
	if !ok {
		if user == "" || user == "root@pam" {
			return nil
		}
		return failf("Only root can pass arbitrary filesystem paths.")
	}
	_, kind, _, err := w.kindOf(volid)
	if err != nil {
		return err
	}
	owner, path := volumeOwner(volid), "/storage/"+storageID
	if w.check(user, path, "Datastore.Allocate") == nil {
		return nil
	}
	switch {
	case kind == isoKind, kind == templateKind, kind == importKind:
		return w.check(user, path, "Datastore.AllocateSpace", "Datastore.Audit")
	case owner == 0:
		return failf("missing privileges to access %s", volid)
	case owner == id:
		return nil
	}
	return firstError(w.check(user, path, "Datastore.Audit"), w.check(user, vmPath(owner), "VM.Config.Disk"))
}

// CheckVolume makes the check before a volume's attributes are shown.
func (w *World) CheckVolume(user, volid string) error {
	return look(w, func() error { return w.checkVolume(user, 0, volid) })
}

// MaySee reports whether the content listing shows a volume to user.
func (w *World) MaySee(user, volid string) bool {
	return look(w, func() bool { return w.checkVolume(user, 0, volid) == nil })
}

// RegisterTags makes tags of VMs privileged: only users with Sys.Modify on / may add or remove privileged tags.
func (w *World) RegisterTags(tags ...string) { w.set(func() { w.registered = toSet(tags) }) }

// RegisteredTags lists the privileged tags.
func (w *World) RegisteredTags() []string {
	return look(w, func() []string { return slices.Sorted(maps.Keys(w.registered)) })
}

// CRS is datacenter.cfg's crs: how Proxmox HA chooses hosts (pve-cluster, DataCenterConfig.pm). The simulator's HA does not move VMs by it.
type CRS struct {
	Scheduler     string // "basic", "static" or "dynamic"; "" is "basic"
	AutoRebalance bool
	OnStart       bool // ha-rebalance-on-start
}

// Schedule sets crs.
func (w *World) Schedule(c CRS) { w.set(func() { w.crs = c }) }

// CRS returns crs.
func (w *World) CRS() CRS { return look(w, func() CRS { return w.crs }) }

// TagAccess is datacenter.cfg's user-tag-access: which tags a user without Sys.Modify on / may add to
// a VM or take from it (pve-cluster, DataCenterConfig.pm).
type TagAccess struct {
	Allow string   // "free", "existing", "list" or "none"; "" is "free"
	List  []string // user-allow-list: always allowed, unless Allow is "none"
}

// RestrictTags sets user-tag-access.
func (w *World) RestrictTags(a TagAccess) { w.set(func() { w.tagAccess = a }) }

// TagAccess returns user-tag-access.
func (w *World) TagAccess() TagAccess { return look(w, func() TagAccess { return w.tagAccess }) }

// AllowedTags lists the known tags that user may set: the tags of the VMs that user may see, without the privileged
// tags (pve-guest-common, GuestHelpers.pm, get_allowed_tags).
func (w *World) AllowedTags(user string) []string {
	defer w.mu.looking()()
	list := slices.AppendSeq([]string{}, maps.Keys(w.allowedTags(user))) // an empty list, not null
	slices.Sort(list)
	return list
}

func (w *World) allowedTags(user string) map[string]bool {
	privileged := w.check(user, "/", "Sys.Modify") == nil
	allow := cmp.Or(w.tagAccess.Allow, "free")
	allowed := map[string]bool{}
	if allow != "none" || privileged {
		maps.Copy(allowed, toSet(w.tagAccess.List))
	}
	if allow == "free" || allow == "existing" || privileged {
		for id, v := range w.vms {
			for _, tag := range splitTags(v.config["tags"]) {
				if privileged || w.check(user, vmPath(id), "VM.Audit") == nil {
					allowed[tag] = true
				}
			}
		}
	}
	if privileged {
		maps.Copy(allowed, w.registered)
		return allowed
	}
	maps.DeleteFunc(allowed, func(tag string, _ bool) bool { return w.registered[tag] })
	return allowed
}

// checkTags checks every added or removed tag (GuestHelpers.pm, assert_tag_permissions). old are the tags before.
func (w *World) checkTags(user string, id int, pool, old, value string) error {
	if err := w.checkVM(user, id, pool, "VM.Config.Options"); err != nil {
		return err
	}
	was, is := toSet(splitTags(old)), toSet(splitTags(value))
	all := maps.Clone(was)
	maps.Copy(all, is)
	free := cmp.Or(w.tagAccess.Allow, "free") == "free"
	allowed := w.allowedTags(user)
	for _, tag := range slices.Sorted(maps.Keys(all)) {
		if was[tag] != is[tag] && (w.registered[tag] || !free && !allowed[tag]) && w.check(user, "/", "Sys.Modify") != nil {
			return denied("/", "Sys.Modify for modifying tag '"+tag+"'")
		}
	}
	return nil
}

// noTags is the value that create_vm hands to assert_tag_permissions as the tags before: an empty hash in place of a
// string, which reads as one more tag that is removed (qemu-server 9.2, API2/Qemu.pm, create_vm).
const noTags = "HASH(0x5581a1d7c2b8)"

func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}
