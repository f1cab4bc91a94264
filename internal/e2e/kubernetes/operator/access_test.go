package operator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// audited are flags of an API server that writes down who calls what, and the file that it writes.
func audited(t *testing.T) (flags []string, log string) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "audit.yaml"), filepath.Join(dir, "audit.log")
	writeFile(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n"+
		"  - {level: Metadata, userGroups: ['system:serviceaccounts']}\n  - {level: None}\n")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log
}

// called lists "verb group/resource" of all that an account has called and was allowed to.
func (h house) called(account string) map[string]bool {
	h.t.Helper()
	b := must(os.ReadFile(h.auditLog))(h.t)
	calls := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		var e struct {
			Verb string `json:"verb"`
			User struct {
				Username string `json:"username"`
			} `json:"user"`
			ObjectRef struct {
				Resource, APIGroup, Subresource string
			} `json:"objectRef"`
			Annotations map[string]string `json:"annotations"`
			RequestURI  string            `json:"requestURI"`
		}
		mustDo(h.t, json.Unmarshal([]byte(line), &e))
		if e.User.Username != account || e.ObjectRef.Resource == "" {
			continue
		}
		call := e.Verb + " " + e.ObjectRef.APIGroup + "/" + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			call += "/" + e.ObjectRef.Subresource
		}
		if d := e.Annotations["authorization.k8s.io/decision"]; d != "allow" {
			h.t.Errorf("%s: %s %s was not allowed: %s", account, call, e.RequestURI, e.Annotations["authorization.k8s.io/reason"])
		}
		calls[call] = true
	}
	return calls
}

// allowed lists "verb group/resource" of rules.
func allowed(rules []rbacv1.PolicyRule) map[string]bool {
	all := map[string]bool{}
	for _, r := range rules {
		for _, verb := range r.Verbs {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					all[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	return all
}

// notCalled is what the operator may do and does in other stories than these, with the reason.
var notCalled = map[string]string{
	"update recast.dev/talosclusters/finalizers":    "owner references, where the admission plug-in OwnerReferencesPermissionEnforcement is on",
	"update recast.dev/imagerolls/finalizers":       "the same",
	"update recast.dev/fleetrolls/finalizers":       "the same",
	"patch events.k8s.io/events":                    "an event that repeats itself",
	"create /configmaps":                            "server-side apply, a PATCH, of what is not there",
	"create /serviceaccounts":                       "the same",
	"create rbac.authorization.k8s.io/roles":        "the same",
	"create rbac.authorization.k8s.io/rolebindings": "the same",
	"list /configmaps":                              "API servers that do not stream lists",
	"list batch/jobs":                               "the same",
	"list recast.dev/talosclusters":                 "the same",
	"list recast.dev/imagerolls":                    "the same",
	"list recast.dev/fleetrolls":                    "the same",
	"get batch/jobs":                                "an attempt that was written down, and whose Job the cache does not have",
	"delete batch/jobs":                             "an ImageRoll that is deleted while it runs",
	"delete recast.dev/imagerolls":                  "finished ones beyond spec.rolls.keep, and those of a deleted cluster",
}

// requireMinimalAccess holds what the operator and its Jobs may do against what they did.
func (h house) requireMinimalAccess(manifests string) {
	t := h.t
	t.Helper()
	var rules []rbacv1.PolicyRule
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(text), &role); err == nil && role.Kind == "ClusterRole" && role.Name == "recast-operator" {
			rules = role.Rules
		}
	}
	if len(rules) == 0 {
		t.Fatal("the manifests have no ClusterRole recast-operator")
	}
	calls := h.called("system:serviceaccount:recast-system:recast-operator")
	fmt.Fprintf(t.Output(), "the operator has called:\n")
	for _, call := range sorted(calls) {
		fmt.Fprintf(t.Output(), "   %s\n", call)
		if strings.Contains(call, "/secrets") {
			t.Errorf("the operator reads Secrets: %s", call)
		}
	}
	for _, call := range sorted(allowed(rules)) {
		if !calls[call] && notCalled[call] == "" {
			t.Errorf("the operator may %s, and never did", call)
		}
	}
	jobs := h.called("system:serviceaccount:bump:recast-cluster-prod")
	want := []string{"patch /configmaps", "patch recast.dev/imagerolls/status", "patch recast.dev/talosclusters/status"}
	if got := sorted(jobs); !slices.Equal(got, want) {
		t.Errorf("the Jobs have called %q, want %q", got, want)
	}
}

func sorted(set map[string]bool) []string {
	var list []string
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}
