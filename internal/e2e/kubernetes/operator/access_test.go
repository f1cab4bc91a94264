package operator

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestOperatorsToken: whoever has the operator's token wants another program to run in a Job, another account, the node's
// disk, or to rewrite ConfigMaps that are not recast's.
func TestOperatorsToken(t *testing.T) {
	h := newEmptyHouse(t, "operator.md")
	const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: a, namespace: default, labels: {recast.dev/cluster: prod}}
spec:
  template:
    spec:
      serviceAccountName: recast-cluster-prod
      restartPolicy: Never
      volumes: [{name: v, emptyDir: {}}]
      containers: [{name: recast, image: "ghcr.io/recast-sh/recast:e2e", command: [/usr/bin/recast-operator, attempt]}]
`
	const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: recast-cluster-prod, namespace: default}
`
	attack := "create --dry-run=server --as=system:serviceaccount:recast-system:recast-operator -f -"
	h.until("the policies are in force", func() bool {
		_, err := h.try(strings.Replace(configMap, "recast-cluster-prod", "coredns", 1), attack)
		return err != nil
	})
	for name, c := range map[string]struct{ manifest, old, replaced, says string }{
		"a Job of the operator":       {job, "", "", ""},
		"another image":               {job, "recast:e2e", "attacker:e2e", "spec.job.image: the ValidatingAdmissionPolicy recast-operator-jobs allows ghcr.io/recast-sh/recast:e2e: use it"},
		"an init container":           {job, "volumes:", "initContainers: [{name: b, image: 'ghcr.io/recast-sh/recast:e2e'}]\n      volumes:", "recast-operator-jobs allows"},
		"another program":             {job, "[/usr/bin/recast-operator, attempt]", "[/usr/bin/recast, roll]", "run no other program"},
		"arguments":                   {job, "attempt]", "attempt], args: [--help]", "run no other program"},
		"another account":             {job, "serviceAccountName: recast-cluster-prod", "serviceAccountName: admin", "run with the ServiceAccount of their TalosCluster"},
		"no account":                  {job, "serviceAccountName: recast-cluster-prod", "", "run with the ServiceAccount of their TalosCluster"},
		"the node's disk":             {job, "emptyDir: {}", "hostPath: {path: /}", "use nothing of their node"},
		"the node's network":          {job, "volumes:", "hostNetwork: true\n      volumes:", "use nothing of their node"},
		"privileges":                  {job, "attempt]", "attempt], securityContext: {privileged: true}", "use nothing of their node"},
		"capabilities":                {job, "attempt]", "attempt], securityContext: {capabilities: {add: [SYS_ADMIN]}}", "use nothing of their node"},
		"a ConfigMap of the operator": {configMap, "", "", ""},
		"another ConfigMap":           {configMap, "recast-cluster-prod", "coredns", "writes only objects whose names begin with"},
		"another ServiceAccount":      {strings.Replace(configMap, "ConfigMap", "ServiceAccount", 1), "recast-cluster-prod", "default", "writes only objects whose names begin with"},
	} {
		t.Run(name, func(t *testing.T) {
			if h.t = t; !strings.Contains(c.manifest, c.old) {
				t.Fatalf("the manifest has no %q", c.old)
			}
			manifest := strings.Replace(c.manifest, c.old, c.replaced, 1)
			out, err := h.try(manifest, attack)
			if (err == nil) != (c.says == "") || !strings.Contains(out, c.says) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// audited are flags of an API server that writes down who calls what, and the file that it writes. Its plug-in wants a
// right for each owner that may not be deleted before what it owns.
func audited(t *testing.T) (flags []string, log string) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "audit.yaml"), filepath.Join(dir, "audit.log")
	writeFile(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n"+
		"  - {level: Request, userGroups: ['system:serviceaccounts'], verbs: [create], resources: [{group: batch, resources: [jobs]}]}\n"+
		"  - {level: Metadata, userGroups: ['system:serviceaccounts']}\n  - {level: None}\n")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"}, log
}

// audit is an entry of the API server's log.
type audit struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource, Subresource, APIGroup, APIVersion, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject struct {
		metav1.ObjectMeta `json:"metadata"`
	} `json:"requestObject"`
	Annotations map[string]string `json:"annotations"`
	RequestURI  string            `json:"requestURI"`
}

// request is what was sent, without the names of this run.
func (e audit) request() string {
	method := map[string]string{"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}[e.Verb]
	path, _, _ := strings.Cut(e.RequestURI, "?")
	words := strings.Split(path, "/")
	for i, word := range words {
		if word == "namespaces" && i+1 < len(words) {
			words[i+1] = "NAMESPACE"
		}
		if word == e.ObjectRef.Resource && i+1 < len(words) {
			words[i+1] = "NAME"
		}
	}
	text := cmp.Or(method, "GET") + " " + strings.Join(words, "/")
	if e.Verb == "watch" {
		text += "?watch=true"
	}
	return "`" + text + "`"
}

// needs are the rights that a request needs, such as "create batch/jobs", each with a note of what makes it needed.
func (e audit) needs() map[string]string {
	resource := strings.TrimPrefix(e.ObjectRef.APIGroup+"/"+e.ObjectRef.Resource, "/")
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	all := map[string]string{e.Verb + " " + resource: ""}
	if e.Verb == "patch" && e.ResponseStatus.Code == http.StatusCreated {
		all["create "+resource] = " of an object that is not there: server-side apply"
	}
	for _, o := range e.RequestObject.OwnerReferences {
		if o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion {
			all["update recast.dev/"+strings.ToLower(o.Kind)+"s/finalizers"] = " with this owner, where OwnerReferencesPermissionEnforcement is on"
		}
	}
	return all
}

// asked are the rights that an account needed, each with the first by name of the requests that needed it.
func (h house) asked(account string) map[string]string {
	h.t.Helper()
	b := must(os.ReadFile(h.auditLog))(h.t)
	asked := map[string]string{}
	for line := range strings.Lines(string(b)) {
		var e audit
		mustDo(h.t, json.Unmarshal([]byte(line), &e))
		if e.User.Username != account || e.ObjectRef.Resource == "" {
			continue
		}
		if d := e.Annotations["authorization.k8s.io/decision"]; d != "allow" {
			h.t.Errorf("%s: %s %s was not allowed: %s", account, e.Verb, e.RequestURI, e.Annotations["authorization.k8s.io/reason"])
		}
		for right, note := range e.needs() {
			if text := e.request() + note; asked[right] == "" || text < asked[right] {
				asked[right] = text
			}
		}
	}
	return asked
}

// granted are the rights that roles of that name give.
func granted(t *testing.T, manifests, name string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(text), &role); err != nil || role.Name != name || !strings.HasSuffix(role.Kind, "Role") {
			continue
		}
		for _, r := range role.Rules {
			for _, verb := range r.Verbs {
				for _, resource := range r.Resources {
					all[verb+" "+strings.TrimPrefix(r.APIGroups[0]+"/"+resource, "/")] = true
				}
			}
		}
	}
	return all
}

const (
	accessPage  = "../../../../docs/reference/operator-access.md"
	accessIntro = "# What recast-operator may do\n\n" +
		"`make e2e-operator` makes this table of what its stories ask of a Kubernetes API server that allows just that: a right that no story\n" +
		"needs fails, and so does one that is missing. A Job has the rights of a Job for its own TalosCluster and ImageRoll alone.\n\n" +
		"| who | verb | resource | the request that needs it |\n|---|---|---|---|\n"
)

var accessUpdate = flag.Bool("access.update", false, "write docs/reference/operator-access.md afresh")

// requireMinimalAccess holds what the operator and its Jobs may do against what they did, and the page against both.
func (h house) requireMinimalAccess(manifests string) {
	t := h.t
	t.Helper()
	asked, may := h.asked("system:serviceaccount:recast-system:recast-operator"), granted(t, manifests, "recast-operator")
	for right := range asked {
		if !may[right] {
			t.Errorf("no role of the operator says that it may %s: %s", right, asked[right])
		}
	}
	for right := range may {
		if asked[right] == "" {
			t.Errorf("the operator may %s, and no story needs that", right)
		}
	}
	jobs := h.asked("system:serviceaccount:bump:recast-cluster-prod")
	want := []string{"patch configmaps", "patch recast.dev/imagerolls/status", "patch recast.dev/talosclusters/status"}
	if got := slices.Sorted(maps.Keys(jobs)); !slices.Equal(got, want) {
		t.Errorf("the Jobs have needed %q, want %q", got, want)
	}
	for _, attack := range []string{"create jobs", "patch configmaps", "create rolebindings"} { // in a namespace that is not listed
		out, _ := h.try("", "auth can-i "+attack+" -n kube-system --as=system:serviceaccount:recast-system:recast-operator")
		if out != "no" {
			t.Errorf("may the operator %s in kube-system? %s", attack, out)
		}
	}
	page := accessIntro + rows("operator", asked) + rows("Job", jobs)
	if *accessUpdate {
		mustDo(t, os.WriteFile(accessPage, []byte(page), 0o600))
	} else if old := string(must(os.ReadFile(accessPage))(t)); old != page {
		t.Errorf("%s is not what the stories need: make e2e-operator ACCESS=1 writes\n%s", accessPage, page)
	}
}

// rows are sorted by resource.
func rows(who string, asked map[string]string) string {
	var lines []string
	for right, request := range asked {
		verb, resource, _ := strings.Cut(right, " ")
		lines = append(lines, fmt.Sprintf("%s\x00| %s | %s | %s | %s |\n", resource, who, verb, resource, request))
	}
	slices.Sort(lines)
	var text strings.Builder
	for _, l := range lines {
		_, row, _ := strings.Cut(l, "\x00")
		text.WriteString(row)
	}
	return text.String()
}
