package operator

import (
	"strings"
	"testing"
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
