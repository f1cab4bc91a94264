package survey

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

// Lack is a privilege that is missing at a path.
type Lack struct {
	Need
	At         string // where it is missing: the need's path, or a path below, whose own entry overrides the one above
	Overridden bool   // the need's path has the privilege, but At does not
	Flat       bool   // the privilege was granted at the need's path without propagation
}

// Remedy says what else there is to do; "" if granting the privilege is enough.
func (l Lack) Remedy() string {
	switch {
	case l.Overridden:
		return fmt.Sprintf("%s has it, but an entry at %s takes the place of that: remove that one, or give it all that is needed", l.Path, l.At)
	case l.Flat:
		return fmt.Sprintf("it was granted at %s without propagation, so it does not hold below", l.Path)
	}
	return ""
}

// Missing is what a token lacks.
type Missing struct {
	Token string
	Lacks []Lack // by path and privilege

	needs    Needs
	standing map[string]cluster.Standing // at the paths of Lacks
}

// Held lists the needed privileges at a path that the token has.
func (m Missing) Held(path string) (out []string) {
	for _, n := range m.needs {
		if _, lacks := m.Lack(n); n.Path == path && !lacks {
			out = append(out, n.Privilege)
		}
	}
	return out
}

func (m Missing) Lack(n Need) (Lack, bool) {
	return cluster.Find(m.Lacks, func(l Lack) bool { return compareNeeds(l.Need, n) == 0 })
}

// String lists what is missing by path: "VM.Audit, VM.Allocate on /vms; …".
func (m Missing) String() string {
	by := map[string][]string{}
	for _, l := range m.Lacks {
		if !slices.Contains(by[l.At], l.Privilege) {
			by[l.At] = append(by[l.At], l.Privilege)
		}
	}
	parts := cluster.Each(m.paths(), func(path string) string { return strings.Join(by[path], ", ") + " on " + path })
	return strings.Join(parts, "; ")
}

// paths are the paths where something is missing, in the order of Lacks.
func (m Missing) paths() []string {
	return slices.Compact(cluster.Each(m.Lacks, func(l Lack) string { return l.At })) // Lacks is sorted by At
}

// Need is one privilege that a piece of work needs, and why.
type Need struct {
	Path      string   `json:"path"` // where to grant it; Proxmox hands it down to the paths below
	Privilege string   `json:"privilege"`
	Why       []string `json:"why"`

	spots []spot
}

// Needs are all privileges that a piece of work needs, by path and privilege.
type Needs []Need

// Check refuses unless the token has every privilege; the hint has the commands that grant the missing ones.
func (n Needs) Check(ctx context.Context, access cluster.Access) error {
	m, err := n.Missing(ctx, access)
	if err != nil || len(m.Lacks) == 0 {
		return err
	}
	err = fault.TokenPrivileges.Refusedf("the Proxmox token lacks privileges: %s", m)
	lines := append(m.Grants().Lines(m.Token), m.Caution())
	return fault.WithHint(err, "as root on a Proxmox node, where a role that exists already is no problem:\n  %s\nrecast doctor says what each is for", strings.TrimSpace(strings.Join(lines, "\n  ")))
}

// Missing reads the token's privileges and lists the needs that it lacks.
func (n Needs) Missing(ctx context.Context, access cluster.Access) (Missing, error) {
	paths := n.paths()
	held := make([]cluster.Privileges, len(paths))
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i, path := range paths {
		g.Go(func() (err error) {
			held[i], err = access.Permissions(asking, path)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Missing{}, fmt.Errorf("read the token's permissions: %w", err)
	}
	granted := make(map[string]cluster.Privileges, len(paths))
	for i, path := range paths {
		granted[path] = held[i]
	}
	m := n.compare(granted, access.TokenID())
	if len(m.Lacks) == 0 {
		return m, nil
	}
	standing, err := access.Standing(ctx, m.paths())
	if err != nil {
		return Missing{}, fmt.Errorf("read what the token and its user have already: %w", err)
	}
	m.standing = standing
	return m, nil
}

// Paths are the paths where the needs must be granted, sorted.
func (n Needs) Paths() []string {
	return slices.Compact(cluster.Each(n, func(need Need) string { return need.Path })) // Needs are sorted by Path
}

// add adds a privilege that is granted at path and checked at the spots, or at path itself if there are none.
func (n *Needs) add(path, why string, spots []spot, privileges ...string) {
	if len(spots) == 0 {
		spots = []spot{{path: path}}
	}
	for _, privilege := range privileges {
		i, found := slices.BinarySearchFunc(*n, Need{Path: path, Privilege: privilege}, compareNeeds)
		if !found {
			*n = slices.Insert(*n, i, Need{Path: path, Privilege: privilege})
		}
		need := &(*n)[i]
		if !slices.Contains(need.Why, why) {
			need.Why = append(need.Why, why)
		}
		for _, s := range spots {
			if !slices.Contains(need.spots, s) {
				need.spots = append(need.spots, s)
			}
		}
	}
}

func (n *Needs) on(storages []string, why, privilege string) {
	for _, storage := range storages {
		n.add("/storage/"+storage, why, nil, privilege)
	}
}

func (n Needs) compare(granted map[string]cluster.Privileges, token string) Missing {
	m := Missing{Token: token, needs: n}
	for _, need := range n {
		failing := cluster.Where(need.spots, func(s spot) bool { return !s.held(need.Privilege, granted) })
		propagates, has := granted[need.Path][need.Privilege]
		switch {
		case len(failing) == 0:
		case !propagates:
			m.Lacks = append(m.Lacks, Lack{Need: need, At: need.Path, Flat: has})
		default:
			for _, s := range failing {
				m.Lacks = append(m.Lacks, Lack{Need: need, At: s.path, Overridden: s.path != need.Path})
			}
		}
	}
	slices.SortStableFunc(m.Lacks, func(a, b Lack) int {
		return cmp.Or(strings.Compare(a.At, b.At), strings.Compare(a.Privilege, b.Privilege))
	})
	return m
}

// paths are the paths whose permissions must be known, sorted.
func (n Needs) paths() []string {
	set := map[string]bool{}
	for _, need := range n {
		set[need.Path] = true
		for _, s := range need.spots {
			set[s.path] = true
			if s.or != "" {
				set[s.or] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func compareNeeds(a, b Need) int {
	return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Privilege, b.Privilege))
}

const readsAtOnce = 8

// spot is where Proxmox checks a privilege.
type spot struct {
	path  string
	below bool   // for an object below path that does not exist yet: the privilege must propagate
	or    string // a pool, whose privileges also count
}

func (s spot) held(privilege string, granted map[string]cluster.Privileges) bool {
	if propagates, has := granted[s.path][privilege]; has && (propagates || !s.below) {
		return true
	}
	_, byPool := granted[s.or][privilege]
	return s.or != "" && byPool
}

// DownloadURL: hosts download ISOs themselves. Sys.Audit and Sys.Modify on / do, too (API2/Storage/Status.pm).
const DownloadURL = "download-url"

// Option is an ability that a roll can do without, and its needs.
type Option struct {
	Name    string
	Without string // what happens if it is not granted
	Needs   Needs  // beyond those of a roll
}

// OptionalPrivileges lists the abilities for which a token may have more privileges than a roll needs.
func OptionalPrivileges(isoStorages, diskStorages, hosts []string) []Option {
	var download, prune Needs
	for _, host := range hosts {
		// Since pve-access-control 8.1.2; a role with an unknown privilege can't be created.
		download.add("/nodes/"+host, "have the host download boot ISOs itself", nil, "Sys.AccessNetwork")
	}
	// API2/Storage/Content.pm requires no less to delete an ISO.
	prune.on(isoStorages, "delete boot ISOs that nothing uses", "Datastore.Allocate")
	prune.on(diskStorages, "delete disk images that nothing uses", "Datastore.Allocate")
	return []Option{
		{DownloadURL, "boot ISOs are uploaded from here", download},
		{"prune", "recast prune refuses, and prints the commands that grant it; a roll does not need it. It also lets the token delete any volume there", prune},
		{"claim in Proxmox", "the claim of a run is a Lease in Kubernetes, which serves where all nodes are upgraded in place", NeedsToClaim()},
	}
}

// With returns the needs of n and of others together.
func (n Needs) With(others Needs) Needs {
	out := slices.Clone(n)
	for _, o := range others {
		for _, why := range o.Why {
			out.add(o.Path, why, o.spots, o.Privilege)
		}
	}
	return out
}

// Of returns the part of m that is among the given needs.
func (m Missing) Of(some Needs) Missing {
	m.Lacks = slices.DeleteFunc(slices.Clone(m.Lacks), func(l Lack) bool {
		_, found := slices.BinarySearchFunc(some, l.Need, compareNeeds)
		return !found
	})
	return m
}

// Grant gives a role at a path.
type Grant struct {
	Path       string
	Role       string
	Privileges []string // of the role, sorted
	User       bool     // gives it to the token's user
	Token      bool     // and to the token
	Flat       bool     // without propagation
}

type Grants []Grant

// kept returns the grants that give back what a first entry at a path would take away.
func kept(at cluster.Standing, token, path string, needed []string, toUser bool) (out Grants) {
	user := userOf(token)
	if !at.Whole {
		at.User = at.Token // the user has at least the token's privileges
	}
	for _, flat := range []bool{false, true} {
		var ofUser, ofToken []string
		if toUser && !at.UserEntry {
			ofUser = beside(at.User, path, needed, flat)
		}
		if !at.TokenEntry {
			ofToken = beside(at.Token, path, needed, flat)
		}
		same := slices.Equal(ofUser, ofToken)
		if len(ofUser) > 0 {
			out = append(out, Grant{Path: path, Role: keepName(user, path, flat), Privileges: ofUser, User: true, Token: same, Flat: flat})
		}
		if len(ofToken) > 0 && !same {
			out = append(out, Grant{Path: path, Role: keepName(token, path, flat), Privileges: ofToken, Token: true, Flat: flat})
		}
	}
	return out
}

func userOf(token string) string {
	user, _, _ := strings.Cut(token, "!")
	return user
}

// beside lists the privileges that are held at a path but not needed there, sorted.
func beside(held cluster.Privileges, path string, needed []string, flat bool) (out []string) {
	for p, propagates := range held {
		if propagates != flat && countsAt(path, p) && !slices.Contains(needed, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// countsAt: a privilege from above has an effect at a path (RPCEnvironment.pm, compute_api_permission).
func countsAt(path, privilege string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	kind, known := map[string]string{"vms": "VM.", "storage": "Datastore.", "nodes": "Sys.", "sdn": "SDN.", "mapping": "Mapping."}[top]
	return !known || strings.HasPrefix(privilege, kind) || privilege == "Permissions.Modify"
}

var noName = regexp.MustCompile(`[^A-Za-z0-9.]+`) // in role names (AccessControl.pm, verify_rolename)

// keepName names a role of one user or token at one path, so that nobody else gains privileges by it.
func keepName(who, path string, flat bool) string {
	name := "RecastKeep-" + strings.Trim(noName.ReplaceAllString(who+path, "-"), "-")
	if flat {
		name += "-flat"
	}
	return name
}

// distinct renames roles that have the same name but different privileges.
func (g Grants) distinct() Grants {
	first := map[string][]string{}
	for i, grant := range g {
		if same, taken := first[grant.Role]; taken && !slices.Equal(same, grant.Privileges) {
			g[i].Role += "-" + grant.Path[strings.LastIndex(grant.Path, "/")+1:]
			continue
		}
		first[grant.Role] = grant.Privileges
	}
	return g
}

// Lines returns the commands that create the roles and grant them, as root on any Proxmox node; Proxmox VE 8 and 9
// accept the same. A token with privilege separation has only the privileges that both the token and its user were
// granted (RPCEnvironment.pm, $compile_acl_path), so both get the role.
func (g Grants) Lines(token string) []string {
	var lines, roles []string
	for _, grant := range g {
		if !slices.Contains(roles, grant.Role) {
			roles = append(roles, grant.Role)
			lines = append(lines,
				fmt.Sprintf("pveum role add %s", grant.Role), // a harmless error if it exists
				fmt.Sprintf("pveum role modify %s --append 1 --privs %s", grant.Role, strings.Join(grant.Privileges, ",")))
		}
	}
	for _, grant := range g {
		who, flat := "", ""
		if grant.User && userOf(token) != "root@pam" { // root@pam may do everything, and can't be given a role
			who += " --users " + userOf(token)
		}
		if grant.Token {
			who += " --tokens '" + token + "'"
		}
		if grant.Flat {
			flat = " --propagate 0"
		}
		if who != "" {
			lines = append(lines, fmt.Sprintf("pveum acl modify %s%s --roles %s%s", grant.Path, who, grant.Role, flat))
		}
	}
	return lines
}

func (m Missing) Caution() string {
	user := userOf(m.Token)
	if len(m.Lacks) == 0 || user == "root@pam" || !slices.ContainsFunc(m.paths(), func(p string) bool { return !m.standing[p].Whole }) {
		return ""
	}
	return fmt.Sprintf("What %[1]s may do already can't be seen. If it was granted anything, itself or by a group (pveum user permissions %[1]s), "+
		"the lines could take that away: leave \"--users %[1]s\" out of them and run recast doctor again, which says then what it lacks.", user)
}

// Grants returns, for each path where something is missing, grants of what the token and its user have there from
// above, and then of all that is needed: an entry of their own overrides the entries above it, and those of the
// user's groups at the same path (pve-access-control, AccessControl.pm, roles).
func (m Missing) Grants() (out Grants) {
	for _, path := range m.paths() {
		at, needed := m.standing[path], m.needs.privilegesAt(path)
		// A user who has all needed privileges gets no more.
		toUser := !at.Whole || slices.ContainsFunc(needed, func(p string) bool { return !at.User[p] })
		out = append(out, kept(at, m.Token, path, needed, toUser)...)
		out = append(out, Grant{Path: path, Role: roleName(path, needed), Privileges: needed, User: toUser, Token: true})
	}
	return out.distinct()
}

// Grants returns the grants of all needs for a token and a user that have nothing.
func (n Needs) Grants() (out Grants) {
	for _, path := range n.Paths() {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges, User: true, Token: true})
	}
	return out.distinct()
}

// privilegesAt lists what an entry at path must hold: what is granted there, and above for it or what is below.
func (n Needs) privilegesAt(path string) []string {
	set := map[string]bool{}
	for _, need := range n {
		wanted := need.Path == path
		if isBelow(path, need.Path) {
			wanted = slices.ContainsFunc(need.spots, func(s spot) bool { return s.path == path || isBelow(s.path, path) })
		}
		if wanted {
			set[need.Privilege] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func isBelow(path, above string) bool {
	return path != above && strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}

// roleName gives the same work the same role on all paths. Who only rolls does not get the one that deletes ISOs.
func roleName(path string, privileges []string) string {
	has := func(p string) bool { return slices.Contains(privileges, p) }
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case top == "":
		return "RecastCluster"
	case top != "storage":
		return map[string]string{"vms": "RecastVMs", "nodes": "RecastNodes", "access": "RecastAccess", "sdn": "RecastNetwork", "mapping": "RecastMappings", "pool": "RecastPools"}[top]
	case has("Datastore.Allocate"):
		return "RecastPrune"
	case has("Datastore.AllocateTemplate") && has("Datastore.AllocateSpace"):
		return "RecastStorage"
	case has("Datastore.AllocateTemplate"):
		return "RecastISOs"
	case has("Datastore.AllocateSpace"):
		return "RecastDisks"
	}
	return "RecastMedia"
}

// bridge adds SDN.Use, with a VLAN tag one level deeper, with trunks at each (GuestHelpers.pm, check_vnet_access).
func (n *Needs) bridge(key, bridge, tag, trunks string) {
	path := "/sdn/zones/localnetwork/" + bridge
	at := spot{path: path}
	switch {
	case trunks != "":
		at.below = true
	case tag != "":
		at.path += "/" + tag
	}
	n.add(path, "connect "+key+" to "+bridge, []spot{at}, "SDN.Use")
}

func (n *Needs) claim() {
	n.add("/vms", "make and delete the VM that is the claim of the run", []spot{{path: "/vms", below: true}}, claimPrivileges...)
}

// common is for every roll. Proxmox deletes entries at /vms/<id> with the VM (remove_vm_access): grants are above.
func (n *Needs) common(hosts []string) {
	n.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	n.add("/", "read access control entries of single VMs", []spot{{path: "/access"}}, "Sys.Audit")
	for _, host := range hosts {
		if host != "" {
			n.add("/", "read the state and the tasks of the hosts", []spot{{path: "/nodes/" + host}}, "Sys.Audit")
		}
	}
	n.see()
}

// config adds what single settings need: found missing after the delete, it would keep the node down (API2/Qemu.pm).
func (n *Needs) config(config map[string]string) {
	use := func(path, key string) { n.add(path, "write the setting "+key, nil, "Mapping.Use") }
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value := config[key]
		option := func(name string) string { return cluster.Disk{Options: strings.Split(value, ",")}.Option(name) }
		first, _, _ := strings.Cut(value, ",")
		switch bus := strings.TrimRight(key, "0123456789"); {
		case key == "startup":
			n.add("/", "write the setting startup", nil, "Sys.Modify")
		case key == "vmstatestorage":
			n.add("/storage/"+value, "write the setting vmstatestorage", nil, "Datastore.AllocateSpace")
		case key == "rng0" && strings.Contains(value, "/dev/hwrng"):
			use("/mapping/hwrng", key)
		case key == "cpu" && strings.HasPrefix(cmp.Or(option("cputype"), first), "custom-"):
			// Before qemu-server 9.1 the check was Sys.Audit on /nodes ($check_cpu_model_access).
			use("/mapping/cpu/"+strings.TrimPrefix(cmp.Or(option("cputype"), first), "custom-"), key)
			n.add("/", "use a custom CPU model", []spot{{path: "/nodes"}}, "Sys.Audit")
		case bus == "net" && cluster.LocalBridge(option("bridge")):
			n.bridge(key, option("bridge"), option("tag"), option("trunks"))
		case bus == "virtiofs":
			use("/mapping/dir/"+cmp.Or(option("dirid"), first), key)
		case (bus == "hostpci" || bus == "usb") && option("mapping") != "":
			use("/mapping/"+map[string]string{"hostpci": "pci", "usb": "usb"}[bus]+"/"+option("mapping"), key)
		default:
			n.medium(key, value)
		}
	}
}

// disk adds what parking a disk needs, or attaching a holder's (PVE/Storage.pm, check_volume_access).
func (n *Needs) disk(d planning.DiskPlan, vm cluster.VMID) {
	disk, err := cluster.ParseDisk(d.Key, d.Volid)
	if err != nil || !strings.Contains(d.Volid, ":") {
		return // not a volume of a storage: the node is refused
	}
	path := "/storage/" + disk.Storage()
	n.add(path, "see the volumes of the nodes", nil, "Datastore.Audit")
	if disk.Owner != 0 && disk.Owner != vm {
		holder := []spot{{path: fmt.Sprintf("/vms/%d", disk.Owner)}}
		n.add("/vms", "attach the holder's disks again", holder, "VM.Config.Disk")
		n.add("/vms", "see the holder", holder, "VM.Audit")
		return
	}
	n.add(path, "hand disks over and make the blank system disks", nil, "Datastore.AllocateSpace")
}

// images adds what the storages of boot ISOs and of disk images need (pve-storage, Storage.pm, check_volume_access).
func (n *Needs) images(isos, disks []string) {
	n.on(isos, "upload boot ISOs", "Datastore.AllocateTemplate")
	n.on(isos, "see boot ISOs, and the space for them", "Datastore.Audit")
	n.on(disks, "upload disk images", "Datastore.AllocateTemplate")
	n.on(disks, "make disks from disk images, and see the space for them", "Datastore.Audit")
}

// medium adds what the medium in a CD drive needs (API2/Qemu.pm, $check_storage_access).
func (n *Needs) medium(key, value string) {
	if !cluster.IsDiskKey(key) {
		return
	}
	d, err := cluster.ParseDisk(key, value)
	switch {
	case err != nil || !d.CDROM || d.CloudInit():
	case d.Volid == "cdrom":
		n.add("/", "put the host's CD drive into "+key, nil, "Sys.Console")
	case strings.Contains(d.Volid, ":"):
		n.add("/storage/"+d.Storage(), "put the medium of "+key+" back", nil, "Datastore.Audit")
	}
}

// node adds what one node needs. disks are those that the node will lose or get back.
func (n *Needs) node(s cluster.Strategy, w cluster.Wanted, f observe.Found, disks []planning.DiskPlan) {
	if s.VM() == cluster.VMUntouched {
		return
	}
	vm, id, pool := f.VM, w.VMID, ""
	if f.Open() {
		id = f.Parking.Record.VMID
	}
	var config map[string]string
	if vm != nil {
		id, config, pool = vm.ID, vm.Config, poolOf(*vm)
	}
	spots := []spot{{path: "/vms", below: true, or: pool}} // the parking VM
	if id != 0 {
		spots = append(spots, spot{path: fmt.Sprintf("/vms/%d", id), or: pool})
	}
	spots = append(spots, cluster.Each(parkedOn(f), spotOf)...)
	n.replacing(s, spots)
	if s.VM() == cluster.VMAgain || s.VM() == cluster.VMAsBefore {
		config = maps.Clone(config)
		if all, err := (cluster.VM{Config: config}).Disks(); err == nil && s.VM() == cluster.VMAgain {
			delete(config, cluster.CDKey(config, all)) // that drive gets the boot ISO
		}
		n.config(config)
		for _, tag := range f.Ties.Tags {
			n.add("/", "give the new VM its tag "+tag, nil, "Sys.Modify")
		}
	}
	if media, err := (cluster.VM{Config: config}).OtherMedia(); err == nil && s.Replaces() && !s.DeletesVM() {
		for key := range media {
			n.medium(key, config[key])
		}
	}
	if s.Replaces() && !s.DeletesVM() && f.BlankSetting(w.Build) != nil {
		n.add("/vms", "tell the blank machine its address", spots, "VM.Config.Network")
	}
	for _, d := range disks {
		n.disk(d, id)
	}
	if s.Installs() {
		n.images(w.ISOStorages, w.DiskStorages)
	}
	if f.Ties.HA != nil || vm != nil && vm.HA {
		n.add("/", "take VMs out of HA and put them back", nil, "Sys.Console")
	}
}

func parkedOn(f observe.Found) []cluster.VM {
	return cluster.Each(f.Parkings(), func(p parking.Parking) cluster.VM { return p.VM })
}

// replacing adds what every new system disk needs on the VMs at these spots.
func (n *Needs) replacing(s cluster.Strategy, spots []spot) {
	if s.Reshapes() { // its settings' privileges come with each setting: see shape
		n.add("/vms", "stop and start the VM", spots, "VM.PowerMgmt")
		return
	}
	for _, p := range reimagePrivileges {
		n.add("/vms", p.why, spots, p.privilege)
	}
	if s.Installs() {
		n.add("/vms", "write into its SMBIOS how the blank machine proves to be the VM", spots, "VM.Config.HWType")
	}
	if !s.SwapsInVM() && s.VM() != cluster.VMGone {
		for _, p := range recreatePrivileges {
			n.add("/vms", p.why, spots, p.privilege)
		}
	}
}

func (n *Needs) see() {
	n.add("/vms", "see every VM, as any may refer to a disk or be the claim of another run", []spot{{path: "/vms", below: true}}, "VM.Audit")
}

// NeedsOf derives what a plan needs, by each node's strategy; inLease says that the run's claim is kept in Kubernetes.
func NeedsOf(p planning.Plan, inLease bool) (needs Needs) {
	for _, n := range p.Work() {
		needs.common([]string{n.Host})
		if !inLease {
			needs.claim()
		}
		for more := true; more; n, more = n.Then() {
			needs.of(n)
		}
	}
	return needs
}

func (n *Needs) of(p planning.NodePlan) {
	if !p.Strategy.Reshapes() { // a reshape is one of the VM's changes: see shape
		n.node(p.Strategy, p.Wanted, p.Found, p.Disks())
	}
	n.shape(p)
	if p.IsWayBack {
		n.images(p.Wanted.ISOStorages, p.Wanted.DiskStorages)
	}
	n.freeing(p.FreesOn(), parkedOn(p.Found))
}

func NeedsToClaim() Needs { return needing((*Needs).claim) }

func needing(work func(*Needs)) (needs Needs) {
	work(&needs)
	return needs
}

// NeedsToRoll is what a roll by the given strategies needs while no VM can be seen: a token without privileges sees
// empty lists. The nodes' storages and bridges are then unknown, so the privileges are granted above them.
func NeedsToRoll(isoStorages, hosts []string, strategies ...cluster.Strategy) (needs Needs) {
	needs.common(hosts)
	needs.claim()
	fresh := []spot{{path: "/vms", below: true}}
	disks := []spot{{path: "/storage", below: true}}
	bridges := []spot{{path: "/sdn/zones/localnetwork", below: true}}
	for _, s := range strategies {
		if s.KeepsVM() {
			continue
		}
		needs.replacing(s, fresh)
		needs.add("/storage", "hand disks over and make the blank system disks", disks, "Datastore.AllocateSpace")
		needs.add("/storage", "see the storages and what is on them", disks, "Datastore.Audit")
		if s.DeletesVM() {
			needs.add("/sdn/zones/localnetwork", "connect the new VMs to their bridges", bridges, "SDN.Use")
		}
		needs.images(isoStorages, nil)
	}
	return needs
}

// NeedsToSee is for finding another run's claim: Proxmox silently leaves out VMs that the token may not see.
func NeedsToSee() Needs { return needing((*Needs).see) }

// NeedsToUpgradeKubernetes is without the run's claim, which needs more if it is kept as a VM.
func NeedsToUpgradeKubernetes(host string) Needs {
	return needing(func(n *Needs) { n.common([]string{host}) })
}

// The privileges that the work needs on VMs (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm). Each run creates
// and deletes its own claim and parking VMs. For the cloud-init settings Proxmox requires VM.Config.Cloudinit or
// VM.Config.Network: the latter is needed anyway.
var (
	claimPrivileges   = []string{"VM.Allocate", "VM.Config.Memory", "VM.Config.Options"}
	reimagePrivileges = []struct{ privilege, why string }{
		{"VM.Audit", "read the node's VM"},
		{"VM.Allocate", "make and delete the VM that its disks are parked on"},
		{"VM.Config.Memory", "make the VM that its disks are parked on"},
		{"VM.Config.Options", "mark the VM, keep it from starting by itself meanwhile"},
		{"VM.Config.Disk", "hand disks over, make the blank system disk, set the boot order"},
		{"VM.Config.CDROM", "insert and eject the boot ISO"},
		{"VM.PowerMgmt", "stop and start the VM"},
	}
	// recreatePrivileges are those of a create with every setting that a token may write.
	recreatePrivileges = []struct{ privilege, why string }{
		{"VM.Allocate", "delete the VM and create it again"},
		{"VM.Config.CPU", "give the new VM its CPUs"},
		{"VM.Config.Memory", "give the new VM its memory"},
		{"VM.Config.HWType", "give the new VM its machine type, SMBIOS UUID and devices"},
		{"VM.Config.Network", "give the new VM its network cards"},
	}
)

// privilegeOf is what changing a setting of a VM needs on it (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm).
func privilegeOf(setting string) string {
	bus := strings.TrimRight(setting, "0123456789")
	switch {
	case cluster.IsDiskKey(setting):
		return "VM.Config.Disk"
	case bus == "net":
		return "VM.Config.Network"
	case slices.Contains([]string{"cores", "sockets", "vcpus", "cpu", "cpuunits", "numa"}, setting):
		return "VM.Config.CPU"
	case slices.Contains([]string{"memory", "balloon", "shares"}, setting):
		return "VM.Config.Memory"
	case bus == "hostpci", slices.Contains([]string{"machine", "bios", "scsihw"}, setting):
		return "VM.Config.HWType"
	}
	return "VM.Config.Options"
}

func (n *Needs) shape(p planning.NodePlan) {
	vm := p.Found.VM
	if p.Strategy.From() == cluster.Nowhere && !p.Resume {
		n.config(shape.New(p.Wanted, p.VMID, "").Config)
		for _, d := range p.Wanted.Shape.Disks {
			n.add("/storage/"+d.Storage, "make the new disks", nil, "Datastore.AllocateSpace")
		}
		if pool := p.Wanted.Shape.Pool; pool != "" {
			n.add("/pool/"+pool, "make VMs in their pool", nil, "VM.Allocate")
		}
	}
	if len(p.VM) == 0 || vm == nil {
		return
	}
	if len(p.VM.At(shape.Off)) > 0 && (p.Strategy.KeepsVM() || p.Strategy.Reshapes()) {
		n.node(cluster.Reshape, p.Wanted, p.Found, nil)
	}
	at := []spot{spotOf(*vm)}
	for _, setting := range p.VM.Changed() {
		n.add("/vms", "change "+setting+" of the node's VM", at, privilegeOf(setting))
	}
	set, err := shape.Settings(*vm, p.Wanted.Shape, p.VM)
	if err != nil {
		return // the plan is refused
	}
	n.config(set)
	for _, d := range p.Wanted.Shape.Disks {
		on := d.Storage
		if have, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); err == nil {
			on = have.Storage()
		}
		if slices.Contains(p.VM.Changed(), d.Key) {
			n.add("/storage/"+on, "make and grow disks", nil, "Datastore.AllocateSpace")
		}
	}
	for _, d := range p.VM {
		switch {
		case d.Key == "pool":
			n.add("/pool/"+d.Wanted, "put the node's VM into its pool", nil, "Pool.Allocate")
			n.add("/vms", "put the node's VM into its pool", at, "VM.Allocate")
		case d.Key == "host" && d.When != shape.Never:
			n.add("/vms", "migrate the node's VM", at, "VM.Migrate")
		case strings.HasPrefix(d.Key, "ha "):
			n.add("/", "change what Proxmox HA has of VMs", nil, "Sys.Console")
		}
	}
}

// NeedsToPrune is what removing ISOs from those storages needs: everything for a run's claim, and VM.Audit on every VM
// of the Proxmox cluster. It includes uploads: an entry at a storage overrides those above.
func NeedsToPrune(isoStorages, diskStorages []string) (needs Needs) {
	needs.common(nil)
	needs.claim()
	needs.images(isoStorages, diskStorages)
	needs.on(isoStorages, "delete ISOs", "Datastore.Allocate")
	needs.on(diskStorages, "delete disk images", "Datastore.Allocate")
	return needs
}

// NeedsToFree is what freeing old system disks on those storages needs, and deleting the
// parking VMs that then own nothing: both first lift the protection. Proxmox requires
// Datastore.AllocateSpace to free a disk (qemu-server, QemuServer.pm, try_deallocate_drive).
func NeedsToFree(storages []string, parked ...cluster.VM) (needs Needs) {
	needs.common(nil)
	needs.claim()
	needs.freeing(storages, parked)
	needs.add("/vms", "delete parking VMs that own nothing any more", vmsAnd(parked), "VM.Allocate")
	return needs
}

// NeedsToClear is what deleting scratch VMs of killed runs needs; they may still be running.
func NeedsToClear(scratch ...cluster.VM) (needs Needs) {
	needs.add("/vms", "stop and delete scratch VMs", vmsAnd(scratch), "VM.Allocate", "VM.PowerMgmt")
	needs.add("/vms", "lift the protection of scratch VMs", vmsAnd(scratch), "VM.Config.Options")
	return needs
}

// vmsAnd returns the spots of VMs in general, and of the given VMs, which may have entries of their own.
func vmsAnd(vms []cluster.VM) []spot {
	return append([]spot{{path: "/vms", below: true}}, cluster.Each(vms, spotOf)...)
}

func spotOf(vm cluster.VM) spot { return spot{path: fmt.Sprintf("/vms/%d", vm.ID), or: poolOf(vm)} }

func poolOf(vm cluster.VM) string {
	if vm.Pool == "" {
		return ""
	}
	return "/pool/" + vm.Pool
}

func (n *Needs) freeing(storages []string, parked []cluster.VM) {
	if len(storages) == 0 {
		return
	}
	all := vmsAnd(parked)
	n.add("/vms", "free old system disks", all, "VM.Config.Disk")
	n.add("/vms", "lift the protection of parking VMs, write their records", all, "VM.Config.Options")
	n.on(storages, "free old system disks", "Datastore.AllocateSpace")
	n.on(storages, "check that they are gone", "Datastore.Audit")
}

// NeedsToPublish is what uploading ISOs to those storages needs, and finding out for which hosts.
func NeedsToPublish(isoStorages, diskStorages []string) (needs Needs) {
	needs.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	needs.images(isoStorages, diskStorages)
	return needs
}

// NeedsToRehearse is what the trials of a plan need for their scratch VMs. A roll by recreate also needs most of it.
func NeedsToRehearse(p planning.Plan) (needs Needs) {
	for _, t := range p.Trials {
		needs.add("/", "see the memory of the hosts", []spot{{path: "/nodes/" + t.Host}}, "Sys.Audit")
		needs.scratch(t)
	}
	return needs
}

// scratchPrivileges are those for creating a scratch VM with its settings, and for using and deleting it.
var scratchPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

func (n *Needs) scratch(t planning.Trial) {
	const why = "try out on scratch VMs what nodes will boot"
	n.add("/vms", why, []spot{{path: "/vms", below: true, or: poolOf(*t.Model.Found.VM)}}, scratchPrivileges...)
	storages, config, err := roll.ScratchTakes(t)
	n.on(storages, "make the drives of scratch VMs", "Datastore.AllocateSpace")
	n.on(storages, "see the room for them", "Datastore.Audit")
	images := t.Model.Wanted.ISOStorages
	if t.Disk != "" {
		images = t.Model.Wanted.DiskStorages
	}
	n.on(images, "give scratch VMs the image that they boot", "Datastore.Audit")
	if err != nil {
		return // the node is refused
	}
	for _, key := range []string{"net0", "cpu"} {
		if v := config[key]; v != "" {
			n.config(map[string]string{key: v})
		}
	}
}

// agentPrivileges each let a token query guest agents. Before Proxmox VE 9 there is only the last one.
var agentPrivileges = []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted", "VM.Monitor"}

// MayAskAgents: the token may query guest agents of VMs that do not exist yet; missing is what it lacks, in words.
func MayAskAgents(ctx context.Context, access cluster.Access) (missing string, err error) {
	has, err := access.Permissions(ctx, "/vms")
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(agentPrivileges, func(p string) bool { return has[p] }) { // where it propagates
		return "", nil
	}
	return fmt.Sprintf("%s on /vms (before Proxmox VE 9: %s)", agentPrivileges[0], agentPrivileges[len(agentPrivileges)-1]), nil
}
