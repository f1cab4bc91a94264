package sim

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/recast-sh/recast/internal/sim/world"
)

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

// setEntry adds an entry and replaces one that differs only in propagation.
func (l *Lab) setEntry(a world.ACL) {
	for _, propagates := range []bool{false, true} {
		old := a
		old.Propagate = propagates
		l.World.Revoke(old)
	}
	l.World.Grant(a)
}
