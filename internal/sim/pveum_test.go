package sim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func TestPveum(t *testing.T) {
	t.Parallel()
	l := &Lab{World: world.New(world.Options{})}
	defer l.World.Close()
	for _, line := range []string{
		"role add Small --privs VM.Audit,Sys.Audit",
		"role modify Small --privs VM.PowerMgmt --append 1",
		"user add a@pve --comment c",
		"acl modify / --users a@pve --roles Administrator",
		"acl modify /vms --tokens a@pve!t --roles Small --propagate 0",
	} {
		if out, err := l.Pveum(strings.Fields(line)); err != nil || out != "" {
			t.Fatalf("%s: %q, %v", line, out, err)
		}
	}
	for _, propagate := range []string{"1", "0"} { // the same entry
		if _, err := l.Pveum(strings.Fields("acl modify /vms --tokens a@pve!t --roles Small --propagate " + propagate)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := l.Pveum(strings.Fields("user token add a@pve t --privsep 1"))
	id, secret, _ := strings.Cut(strings.TrimPrefix(out, "full-tokenid "), "\nvalue ")
	if err != nil || id != "a@pve!t" || l.World.VerifyToken(id, strings.TrimSpace(secret)) != nil {
		t.Fatalf("%q, %v", out, err)
	}
	want := []world.ACL{{Path: "/", Who: "a@pve", Role: "Administrator", Propagate: true}, {Path: "/vms", Who: "a@pve!t", Role: "Small"}}
	if diff := cmp.Diff(want, l.World.ACLs()); diff != "" {
		t.Error(diff)
	}
	if err := l.World.Check(id, "/vms", "VM.PowerMgmt"); err != nil {
		t.Error(err)
	}
	if err := l.World.Check(id, "/vms/100", "VM.Audit"); err == nil {
		t.Error("it propagates")
	}
	if _, err := l.Pveum(strings.Fields("acl delete /vms --tokens a@pve!t --roles Small --propagate 0")); err != nil || len(l.World.ACLs()) != 1 {
		t.Errorf("%v, %v", l.World.ACLs(), err)
	}
	for line, want := range map[string]string{
		"role add Old --privs VM.Monitor":        "invalid privilege 'VM.Monitor'",
		"acl modify / --roles Small":             "acl of /: --roles, and --users or --tokens, are needed",
		"acl show":                               "unknown command 'pveum acl show'",
		"role add Small --what 1":                "flag provided but not defined: -what",
		"role add Small":                         "create role failed: role 'Small' already exists",
		"role modify Big --privs VM.Audit":       "update role failed: role 'Big' does not exist",
		"acl modify / --users a@pve --roles Big": "ACL update failed: role 'Big' does not exist",
	} {
		if _, err := l.Pveum(strings.Fields(line)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
