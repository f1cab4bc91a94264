package sim

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/recast-sh/recast/internal/sim/world"
)

// Shell is root's shell on a Proxmox host, as far as a VM's disks need it. Like Proxmox's own commands, Shell calls
// the API's functions as root@pam, who may do everything, and only for VMs of its own host (qemu-server, CLI/qm.pm).
type Shell struct {
	World *world.World
	Host  string
}

const rootUser = "root@pam"

// Shell is root's shell on a host.
func (l *Lab) Shell(host string) Shell { return Shell{World: l.World, Host: host} }

// Run runs a command and returns its output.
//
//	qm config|start|stop|unlock|destroy VMID
//	qm shutdown VMID [--timeout S] [--forceStop 1]
//	qm create|set VMID [--KEY VALUE …] [--delete KEY,…] [--force 1]
//	qm disk move VMID KEY --target-vmid VMID [--target-disk KEY]      also: qm move-disk
//	qm disk rescan --vmid VMID [--dryrun 1]                           also: qm rescan
//	ha-manager config
//	ha-manager add SID [--state STATE …]
//	ha-manager remove SID [--purge 0|1]
//	pvesh set /nodes/localhost/qemu/VMID/config --KEY VALUE …
//	pvesm list STORAGE [--vmid VMID]
func (s Shell) Run(args []string) (string, error) {
	c, err := parseCommand(args)
	if err != nil {
		return "", err
	}
	switch c.name {
	case "ha-manager":
		return s.haManager(c)
	case "pvesh":
		return s.pvesh(c)
	case "pvesm":
		return s.pvesm(c)
	case "qm":
		return s.qm(c)
	}
	return "", fmt.Errorf("%s: command not found", c.name)
}

// command is a parsed command line. Every option has a value.
type command struct {
	name    string
	words   []string
	options map[string]string
}

func parseCommand(args []string) (c command, err error) {
	if len(args) == 0 {
		return c, errors.New("no command")
	}
	c = command{name: args[0], options: map[string]string{}}
	for args = args[1:]; len(args) > 0; {
		name, isOption := strings.CutPrefix(args[0], "-")
		if !isOption {
			c.words = append(c.words, args[0])
			args = args[1:]
			continue
		}
		name, value, joined := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if args = args[1:]; !joined {
			if len(args) == 0 {
				//lint:ignore ST1005 Getopt::Long says so
				return c, fmt.Errorf("Option %s requires an argument", name)
			}
			value, args = args[0], args[1:]
		}
		if _, twice := c.options[name]; twice {
			return c, world.BadParam(name, "parameter specified more than once")
		}
		c.options[name] = value
	}
	return c, nil
}

func (c command) unknown() error {
	return fmt.Errorf("ERROR: unknown command '%s'", strings.Join(append([]string{c.name}, c.words...), " "))
}

func (c command) take(name string) string {
	value := c.options[name]
	delete(c.options, name)
	return value
}

// done refuses options that the command does not have.
func (c command) done() error {
	for _, name := range slices.Sorted(maps.Keys(c.options)) {
		//lint:ignore ST1005 Getopt::Long says so
		return fmt.Errorf("Unknown option: %s\n400 unable to parse option", name)
	}
	return nil
}

func vmid(word string) (int, error) {
	id, err := strconv.Atoi(word)
	if err != nil || id < 100 {
		return 0, world.BadParam("vmid", "invalid format - value does not look like a valid VM ID\n")
	}
	return id, nil
}

// oldWords maps the former names of some commands to the present ones.
var oldWords = map[string][]string{"move-disk": {"disk", "move"}, "move_disk": {"disk", "move"}, "rescan": {"disk", "rescan"}}

func (s Shell) qm(c command) (string, error) {
	if len(c.words) > 0 {
		if words, ok := oldWords[c.words[0]]; ok {
			c.words = append(slices.Clone(words), c.words[1:]...)
		}
	}
	switch {
	case len(c.words) == 2 && c.words[0] == "disk" && c.words[1] == "rescan":
		return s.rescan(c)
	case len(c.words) == 4 && c.words[0] == "disk" && c.words[1] == "move":
		return s.moveDisk(c)
	case len(c.words) != 2:
		return "", c.unknown()
	}
	id, err := vmid(c.words[1])
	if err != nil {
		return "", err
	}
	switch c.words[0] {
	case "config":
		return s.config(c, id)
	case "create":
		return s.create(c, id)
	case "set":
		return s.set(c, id)
	case "unlock":
		return "", s.unlock(c, id)
	case "start", "stop", "shutdown", "destroy":
		return s.power(c, id)
	}
	return "", c.unknown()
}

func (s Shell) power(c command, id int) (string, error) {
	request := world.ShutdownRequest{ID: id}
	if c.words[0] == "shutdown" {
		seconds, err := strconv.Atoi(c.take("timeout"))
		if err != nil {
			seconds = 60
		}
		request.Timeout, request.ForceStop = time.Duration(seconds)*time.Second, c.take("forceStop") == "1"
	}
	if err := c.done(); err != nil {
		return "", err
	}
	var upid string
	var err error
	switch c.words[0] {
	case "start":
		upid, err = s.World.Start(rootUser, s.Host, id)
	case "stop":
		upid, err = s.World.Stop(rootUser, s.Host, id)
	case "shutdown":
		upid, err = s.World.Shutdown(rootUser, s.Host, request)
	default:
		upid, err = s.World.DestroyVM(rootUser, s.Host, world.DestroyRequest{ID: id})
	}
	return s.wait(upid, err)
}

// wait waits for a task, as the commands do, and returns its log.
func (s Shell) wait(upid string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	t, ok := s.World.WaitTask(upid)
	switch {
	case !ok:
		return "", world.ErrClosed
	case t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS"):
		return lines(t.Log), errors.New(t.ExitStatus)
	}
	return lines(t.Log), nil
}

// shellMessage returns an error's text as the commands print it, including messages about single parameters.
func shellMessage(err error) string {
	e, ok := errors.AsType[*world.Error](err)
	if !ok || len(e.Params) == 0 {
		return err.Error()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d %s", e.Status, e.Message)
	for _, name := range slices.Sorted(maps.Keys(e.Params)) {
		text.WriteString("\n" + name + ": " + strings.TrimSpace(e.Params[name]))
	}
	return text.String()
}

func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}

// config prints the configuration with pending changes applied and the description in one line (qm.pm, config).
func (s Shell) config(c command, id int) (string, error) {
	if err := c.done(); err != nil {
		return "", err
	}
	vm, err := s.World.LookupVM(s.Host, id)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	config := vm.Merged()
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value := config[key]
		if key == "description" {
			value = encodeText(value)
		}
		fmt.Fprintf(&b, "%s: %s\n", key, value)
	}
	return b.String(), nil
}

// encodeText writes text in one line: control characters, non-ASCII, colons and percent
// signs become %XX (pve-common, ParseUtils.pm, encode_text).
func encodeText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < 0x20 || c > 0x7e || c == ':' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (s Shell) create(c command, id int) (string, error) {
	request := world.CreateRequest{ID: id, Pool: c.take("pool"), Start: c.take("start") == "1"}
	if err := noKeyFile(c); err != nil {
		return "", err
	}
	request.Config = c.options
	upid, err := s.World.CreateVM(rootUser, s.Host, request)
	return s.wait(upid, err)
}

// noKeyFile refuses SSH keys: qm takes them as a file, which this shell lacks.
func noKeyFile(c command) error {
	if name, ok := c.options["sshkeys"]; ok {
		return fmt.Errorf("unable to open '%s' - No such file or directory", name)
	}
	return nil
}

func (s Shell) set(c command, id int) (string, error) {
	if err := noKeyFile(c); err != nil {
		return "", err
	}
	return s.change(c, id)
}

func (s Shell) change(c command, id int) (string, error) {
	request := world.ChangeRequest{ID: id, Force: c.take("force") == "1", Digest: c.take("digest")}
	request.Delete = pveList(c.take("delete"))
	request.Set = c.options
	var said strings.Builder
	fmt.Fprintf(&said, "update VM %d:", id)
	for _, key := range slices.Sorted(maps.Keys(request.Set)) {
		said.WriteString(" -" + key + " " + request.Set[key])
	}
	if len(request.Delete) > 0 {
		said.WriteString(" -delete " + strings.Join(request.Delete, ","))
	}
	if err := s.World.SetConfig(rootUser, s.Host, request); err != nil {
		return "", err
	}
	return said.String() + "\n", nil
}

func (s Shell) unlock(c command, id int) error {
	if err := c.done(); err != nil {
		return err
	}
	if _, err := s.World.LookupVM(s.Host, id); err != nil {
		return err
	}
	s.World.SetLock(id, "")
	return nil
}

func (s Shell) moveDisk(c command) (string, error) {
	id, err := vmid(c.words[2])
	if err != nil {
		return "", err
	}
	target, err := vmid(c.take("target-vmid"))
	if err != nil {
		return "", err
	}
	request := world.MoveRequest{ID: id, Disk: c.words[3], Target: target, TargetDisk: c.take("target-disk"), Digest: c.take("digest")}
	if err := c.done(); err != nil {
		return "", err
	}
	upid, err := s.World.MoveDisk(rootUser, s.Host, request)
	return s.wait(upid, err)
}

func (s Shell) rescan(c command) (string, error) {
	id, err := vmid(c.take("vmid"))
	if err != nil {
		return "", err
	}
	dry := c.take("dryrun") == "1"
	if err := c.done(); err != nil {
		return "", err
	}
	var said []string
	if dry {
		said = append(said, "NOTE: running in dry-run mode, won't write changes out!")
	}
	found, err := s.World.Rescan(s.Host, id, dry)
	return lines(append(append(said, "rescan volumes..."), found...)), err
}

// pvesh changes a VM's configuration by its API path.
func (s Shell) pvesh(c command) (string, error) {
	if len(c.words) != 2 || c.words[0] != "set" {
		return "", c.unknown()
	}
	parts := strings.Split(strings.Trim(c.words[1], "/"), "/")
	if len(parts) != 5 || parts[0] != "nodes" || parts[2] != "qemu" || parts[4] != "config" || parts[1] != "localhost" && parts[1] != s.Host {
		//lint:ignore ST1005 pvesh.pm says so
		return "", fmt.Errorf("No 'set' handler defined for '%s'", c.words[1])
	}
	id, err := vmid(parts[3])
	if err != nil {
		return "", err
	}
	return s.change(c, id)
}

// pvesm lists the volumes of a storage (pve-storage, CLI/pvesm.pm, list).
func (s Shell) pvesm(c command) (string, error) {
	if len(c.words) != 2 || c.words[0] != "list" {
		return "", c.unknown()
	}
	owner := 0
	if word := c.take("vmid"); word != "" {
		id, err := vmid(word)
		if err != nil {
			return "", err
		}
		owner = id
	}
	if err := c.done(); err != nil {
		return "", err
	}
	volumes, err := s.World.Volumes(c.words[1], s.Host)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-32s %-7s %-9s %15s %s\n", "Volid", "Format", "Type", "Size", "VMID")
	for _, v := range volumes {
		if owner == 0 || v.Owner == owner {
			fmt.Fprintf(&b, "%-32s %-7s %-9s %15d %d\n", v.Volid, v.Format, v.Content, v.Size, v.Owner)
		}
	}
	return b.String(), nil
}

// haManager manages the resources of Proxmox HA (pve-ha-manager, CLI/ha_manager.pm).
func (s Shell) haManager(c command) (string, error) {
	switch {
	case len(c.words) == 1 && c.words[0] == "config":
		var b strings.Builder
		for _, r := range s.World.HA() {
			b.WriteString(r.SID + "\n")
			options := maps.Clone(r.Options)
			options["state"] = r.State
			if r.Group != "" {
				options["group"] = r.Group
			}
			for _, name := range slices.Sorted(maps.Keys(options)) {
				if options[name] != "" {
					fmt.Fprintf(&b, "\t%s %s\n", name, options[name])
				}
			}
			b.WriteString("\n")
		}
		return b.String(), c.done()
	case len(c.words) == 2 && c.words[0] == "add":
		return "", s.World.CreateHA(rootUser, c.words[1], c.options)
	case len(c.words) == 2 && c.words[0] == "remove":
		purge, err := strconv.ParseBool(c.take("purge"))
		if err := c.done(); err != nil {
			return "", err
		}
		return "", s.World.DeleteHA(rootUser, c.words[1], err != nil || purge)
	}
	return "", c.unknown()
}

// Pveum runs Proxmox's pveum for users, roles and the access control list, as far as a
// token needs them, and returns the output.
//
//	pveum role add|modify NAME --privs "VM.Audit,…" [--append 0|1]
//	pveum role delete NAME
//	pveum user add USERID
//	pveum user token add USERID TOKENID [--privsep 0|1]
//	pveum acl modify|delete PATH --users|--tokens WHO --roles NAME [--propagate 0|1]
func (l *Lab) Pveum(args []string) (string, error) {
	words, flags := splitArgs(args)
	o, err := parsePveum(flags)
	if err != nil {
		return "", err
	}
	switch command := strings.Join(words[:min(2, len(words))], " "); {
	case command == "user token" && len(words) == 5 && words[2] == "add":
		return l.addToken(words[3], words[4], o)
	case command == "user add" && len(words) == 3:
		return "", nil // a user without an ACL entry has no permissions
	case command == "role add" && len(words) == 3:
		if l.World.HasRole(words[2]) {
			return "", fmt.Errorf("create role failed: role '%s' already exists", words[2]) // API2/Role.pm
		}
		return "", l.setRole(words[2], o)
	case command == "role modify" && len(words) == 3:
		if !l.World.HasRole(words[2]) {
			return "", fmt.Errorf("update role failed: role '%s' does not exist", words[2])
		}
		return "", l.setRole(words[2], o)
	case command == "role delete" && len(words) == 3:
		l.World.DeleteRole(words[2])
		return "", nil
	case command == "acl modify" && len(words) == 3:
		return "", l.eachEntry(words[2], o, l.setEntry)
	case command == "acl delete" && len(words) == 3:
		return "", l.eachEntry(words[2], o, l.World.Revoke)
	}
	return "", fmt.Errorf("unknown command 'pveum %s'", strings.Join(words, " "))
}

// splitArgs splits off the words before the first option, as pveum does.
func splitArgs(args []string) (words, flags []string) {
	for i, a := range args {
		if strings.HasPrefix(a, "-") {
			return args[:i], args[i:]
		}
	}
	return args, nil
}

type pveumOptions struct {
	privs, users, tokens, roles string
	propagate, privsep          bool
	appends                     bool
}

func parsePveum(args []string) (o pveumOptions, err error) {
	f := flag.NewFlagSet("pveum", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.privs, "privs", "", "")
	f.StringVar(&o.users, "users", "", "")
	f.StringVar(&o.tokens, "tokens", "", "")
	f.StringVar(&o.roles, "roles", "", "")
	propagate, privsep, appends := f.Int("propagate", 1, ""), f.Int("privsep", 1, ""), f.Int("append", 0, "")
	f.String("comment", "", "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("too many arguments: %q", f.Args())
	}
	o.propagate, o.privsep, o.appends = *propagate != 0, *privsep != 0, *appends != 0
	return o, nil
}

// pveList splits a Proxmox list.
func pveList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(",; ", r) })
}

func (l *Lab) addToken(user, name string, o pveumOptions) (string, error) {
	secret := uuid.NewString()
	id := user + "!" + name
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: o.privsep})
	return fmt.Sprintf("full-tokenid %s\nvalue %s\n", id, secret), nil
}

func (l *Lab) setRole(name string, o pveumOptions) error {
	privs := pveList(o.privs)
	for _, p := range privs {
		if !world.IsPrivilege(p) {
			return fmt.Errorf("invalid privilege '%s'", p) // AccessControl.pm, add_role_privs
		}
	}
	if o.appends {
		privs = append(l.World.Role(name), privs...)
	}
	l.World.AddRole(name, privs...)
	return nil
}

// eachEntry calls do for each ACL entry that a command names.
func (l *Lab) eachEntry(path string, o pveumOptions, do func(world.ACL)) error {
	who := append(pveList(o.users), pveList(o.tokens)...)
	roles := pveList(o.roles)
	if len(who) == 0 || len(roles) == 0 {
		return fmt.Errorf("acl of %s: --roles, and --users or --tokens, are needed", path)
	}
	for _, w := range who {
		for _, r := range roles {
			if !l.World.HasRole(r) {
				return fmt.Errorf("ACL update failed: role '%s' does not exist", r) // API2/ACL.pm
			}
			do(world.ACL{Path: path, Who: w, Role: r, Propagate: o.propagate})
		}
	}
	return nil
}

// setEntry adds an entry; it replaces an entry that differs only in propagation.
func (l *Lab) setEntry(a world.ACL) {
	for _, propagates := range []bool{false, true} {
		old := a
		old.Propagate = propagates
		l.World.Revoke(old)
	}
	l.World.Grant(a)
}
