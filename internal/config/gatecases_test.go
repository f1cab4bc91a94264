package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// withGate is small with one gate of those keys, written in braces.
func withGate(keys string) string { return withRoll("gates:\n    - {" + keys + "}") }

const cephGate = "apiVersion: ceph.rook.io/v1, kind: CephCluster, expr: status.ok"

func gateCases() map[string]problemCase {
	return map[string]problemCase{
		"no list":            {withRoll("gates: {}"), "17:3: roll.gates: must be a list, not a section"},
		"nothing":            {withGate("when: both, kind: A, expr: a"), "18:7: roll.gates[0].apiVersion: required, unless the gate runs a command"},
		"no expression":      {withGate("apiVersion: v1, kind: Node"), "18:7: roll.gates[0].expr: required, unless the gate runs a command"},
		"blank expression":   {withGate("apiVersion: v1, kind: Node, expr: ' '"), "18:36: roll.gates[0].expr: required, unless the gate runs a command"},
		"misspelt key":       {withGate(cephGate + ", labelselector: {}"), `18:73: roll.gates[0].labelselector: unknown key, did you mean "labelSelector"?`},
		"unknown time":       {withGate(cephGate + ", when: after"), `18:73: roll.gates[0].when: "after" is not one of both, before`},
		"no time at all":     {withGate(cephGate + ", timeout: 0s"), "18:73: roll.gates[0].timeout: must be longer than 0"},
		"no version":         {withGate("apiVersion: ceph.rook.io, kind: A, expr: a"), `18:8: roll.gates[0].apiVersion: "ceph.rook.io" is not a group and version of the Kubernetes API: write it like ceph.rook.io/v1`},
		"resource, not kind": {withGate("apiVersion: v1, kind: nodes, expr: a"), `18:24: roll.gates[0].kind: "nodes" is not a kind of Kubernetes object: write it like CephCluster`},
		"namespace":          {withGate(cephGate + ", namespace: Rook"), `18:73: roll.gates[0].namespace: "Rook" is not a name of a namespace`},
		"secrets":            {withGate("apiVersion: v1, kind: Secret, expr: a"), "18:24: roll.gates[0].kind: Secrets are not allowed: the values that an expression reads are shown"},
		"name and labels":    {withGate(cephGate + ", name: a, labelSelector: {matchLabels: {a: b}}"), "18:82: roll.gates[0].labelSelector: name is given too (line 18): keep one of them"},
		"no labels":          {withGate(cephGate + ", labelSelector: {}"), "18:73: roll.gates[0].labelSelector: selects every object: give it matchLabels or matchExpressions, or remove it"},
		"key of a label":     {withGate(cephGate + ", labelSelector: {matchLabels: {'a b': c}}"), `18:103: roll.gates[0].labelSelector.matchLabels."a b": "a b" is not the key of a label`},
		"value of a label":   {withGate(cephGate + ", labelSelector: {matchLabels: {a: 'b,c'}}"), `18:103: roll.gates[0].labelSelector.matchLabels.a: "b,c" is not the value of a label`},
		"operator":           {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: Is}]}"), `18:117: roll.gates[0].labelSelector.matchExpressions[0].operator: "Is" is not one of In, NotIn, Exists, DoesNotExist, did you mean "In"?`},
		"no values":          {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: In}]}"), "18:108: roll.gates[0].labelSelector.matchExpressions[0].values: required by In"},
		"values too many":    {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), "18:135: roll.gates[0].labelSelector.matchExpressions[0].values: Exists takes none: remove them"},
		"empty command":      {withGate("command: []"), "18:8: roll.gates[0].command: names no program: write it like [./check.sh, argument]"},
		"command as text":    {withGate("command: ./check.sh"), "18:8: roll.gates[0].command: must be a list, not text"},
		"command and kind":   {withGate("command: [check], kind: Node"), "18:26: roll.gates[0].kind: the gate runs a command (line 18): write two gates"},
		"two lines":          {withGate(`command: [check], description: "a\nb"`), "18:26: roll.gates[0].description: has more than one line"},
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	// Its first one is a health check as tuppr has them.
	got, err := config.Parse("recast.yaml", []byte(small+`roll:
  gates:
    - apiVersion: ceph.rook.io/v1
      kind: CephCluster
      name: ceph
      namespace: rook-ceph
      description: Ceph
      timeout: 30m
      expr: status.ceph.health in ['HEALTH_OK']
    - apiVersion: apps/v1
      kind: Deployment
      labelSelector:
        matchLabels: {tier: gold, app: ""}
        matchExpressions:
          - {key: env, operator: NotIn, values: [test, dev]}
          - {key: a.b/c, operator: Exists}
          - {key: d, operator: DoesNotExist}
      expr: "true"
      optional: true
    - {command: [./check.sh, "1"], when: before}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Gate{
		{
			APIVersion: "ceph.rook.io/v1", Kind: "CephCluster", Name: "ceph", Namespace: "rook-ceph", Description: "Ceph",
			When: "both", Timeout: minutes(30), Expr: "status.ceph.health in ['HEALTH_OK']",
		},
		{APIVersion: "apps/v1", Kind: "Deployment", When: "both", Timeout: minutes(10), Expr: "true", Optional: true, LabelSelector: config.LabelSelector{
			MatchLabels: map[string]string{"tier": "gold", "app": ""},
			MatchExpressions: []config.LabelExpression{
				{Key: "env", Operator: "NotIn", Values: []string{"test", "dev"}}, {Key: "a.b/c", Operator: "Exists"}, {Key: "d", Operator: "DoesNotExist"},
			},
		}},
		{Command: []string{"./check.sh", "1"}, When: "before", Timeout: config.Duration(10 * time.Minute)},
	}
	if diff := cmp.Diff(want, got.Roll.Gates); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	out, err := got.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.Parse("again.yaml", out, config.Options{})
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if diff := cmp.Diff(want, again.Roll.Gates); diff != "" {
		t.Errorf("written and read again: -want +got\n%s", diff)
	}
	if s := got.Roll.Gates[1].LabelSelector.String(); s != "app=,tier=gold,env notin (test,dev),a.b/c,!d" {
		t.Errorf("selector %q", s)
	}
}

// A bad expression is reported with all other problems.
func TestGateExpression(t *testing.T) {
	t.Parallel()
	o := config.Options{Expr: func(expr string) error {
		if expr == "status.ok" {
			return nil
		}
		return errors.New("not a valid expression: 1:1: undeclared reference to 'statu'")
	}}
	_, err := config.Parse("recast.yaml", []byte(withGate("apiVersion: v1, kind: Node, expr: statu.ok")+"    - {"+cephGate+", timeout: 1}\n"), o)
	check(t, err, `recast.yaml:18:36: roll.gates[0].expr: not a valid expression: 1:1: undeclared reference to 'statu'
recast.yaml:19:73: roll.gates[1].timeout: "1" is not a duration: write it like 30s, 10m or 1h30m
2 problems`)
}

// A program that is given by path must exist, relative to recast.yaml.
func TestGateProgramIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recast.yaml")
	if err := os.WriteFile(path, []byte(withGate("command: [./check.sh]")+"    - {command: [sh]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(path), "check.sh")
	_, err := config.Load(path, config.Options{})
	if want := path + ":18:8: roll.gates[0].command: no such file: " + program; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("err = %v, want %q", err, want)
	}
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path, config.Options{}); err != nil && strings.Contains(err.Error(), "gates") {
		t.Error(err)
	}
}
