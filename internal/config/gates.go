package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Gate is one entry of "roll.gates": Kubernetes objects and an expression, or a program.
type Gate struct {
	// Description is the name of the gate in plans and reports. Default: the objects or the command.
	Description string `yaml:"description,omitempty"`
	// When to check the gate. both: before a node is taken down and after it is back, before the next one; before: only before.
	When string `yaml:"when" jsonschema:"enum=both,enum=before"`
	// Timeout is how long to wait for the gate to hold, each time it is checked. Default: 10m.
	Timeout Duration `yaml:"timeout"`
	// APIVersion of the objects to check, such as ceph.rook.io/v1.
	APIVersion string `yaml:"apiVersion,omitempty"`
	// Kind of the objects, such as CephCluster.
	Kind string `yaml:"kind,omitempty"`
	// Namespace of the objects. Default: all namespaces.
	Namespace string `yaml:"namespace,omitempty"`
	// Name of one object. Default: all objects of the kind must satisfy the expression.
	Name string `yaml:"name,omitempty"`
	// LabelSelector selects objects by their labels.
	LabelSelector LabelSelector `yaml:"labelSelector,omitempty"`
	// Expr is an expression of the Common Expression Language (CEL) that must be true for each object. status, spec and metadata are those of the object, or {} if it has none; object is the whole object, now is the current time on this machine.
	Expr string `yaml:"expr,omitempty"`
	// Optional makes the gate hold if there is no such object or kind.
	Optional bool `yaml:"optional,omitempty"`
	// Command is a program and its arguments, instead of objects; the gate holds if it exits 0. It runs in the directory of this file, with RECAST_NODE, RECAST_STRATEGY, RECAST_RUN, RECAST_CLUSTER and RECAST_WHEN (before or after) in its environment. Of recast's own environment it gets only PATH, HOME, other variables without secrets, and what env names.
	Command []string `yaml:"command,omitempty"`
	// Env names variables of recast's environment to pass to the command, such as LINSTOR_TOKEN; PROXMOX_VE_API_TOKEN is not allowed. docs/notes/hooks.md lists those that every command gets.
	Env []string `yaml:"env,omitempty"`
}

// LabelSelector is the section "labelSelector" of a gate; all parts must match.
type LabelSelector struct {
	// MatchLabels are labels that an object must have, with their values.
	MatchLabels map[string]string `yaml:"matchLabels,omitempty"`
	// MatchExpressions are further conditions on labels.
	MatchExpressions []LabelExpression `yaml:"matchExpressions,omitempty"`
}

// LabelExpression is one entry of "matchExpressions".
type LabelExpression struct {
	// Key of the label.
	Key string `yaml:"key" jsonschema:"required"`
	// Operator relates the label to values.
	Operator string `yaml:"operator" jsonschema:"required,enum=In,enum=NotIn,enum=Exists,enum=DoesNotExist"`
	// Values for In and NotIn.
	Values []string `yaml:"values,omitempty"`
}

// String is the selector in the syntax of the Kubernetes API; "" selects everything.
func (s LabelSelector) String() string {
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		terms = append(terms, key+"="+s.MatchLabels[key])
	}
	for _, e := range s.MatchExpressions {
		values := " (" + strings.Join(e.Values, ",") + ")"
		switch e.Operator {
		case "In":
			terms = append(terms, e.Key+" in"+values)
		case "NotIn":
			terms = append(terms, e.Key+" notin"+values)
		case "Exists":
			terms = append(terms, e.Key)
		case "DoesNotExist":
			terms = append(terms, "!"+e.Key)
		}
	}
	return strings.Join(terms, ",")
}

const (
	labelKey   = `([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	labelValue = `([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?`
	dnsName    = `[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?`
)

// objectKeys are the keys of a gate that select objects.
var objectKeys = []string{"apiVersion", "kind", "namespace", "name", "labelSelector", "expr", "optional"}

func (k checker) gates() {
	for i, g := range k.c.Roll.Gates {
		path := fmt.Sprintf("roll.gates[%d]", i)
		if k.given(path+".timeout") && g.Timeout <= 0 {
			k.add(path+".timeout", "must be longer than 0")
		}
		k.notEmpty(path+".description", g.Description)
		if strings.ContainsAny(g.Description, "\r\n") {
			k.add(path+".description", "has more than one line")
		}
		if k.given(path + ".command") {
			k.commandGate(path, g)
			continue
		}
		k.objectGate(path, g)
	}
}

func (k checker) commandGate(path string, g Gate) {
	if len(g.Command) == 0 || strings.TrimSpace(g.Command[0]) == "" {
		k.add(path+".command", "names no program: write it like [./check.sh, argument]")
	}
	k.env(path, g.Env)
	for _, key := range objectKeys {
		if k.given(path + "." + key) {
			k.add(path+"."+key, "the gate runs a command (line %d): write two gates", k.line(path+".command"))
		}
	}
}

func (k checker) objectGate(path string, g Gate) {
	for _, key := range objectKeys[:2] {
		if !k.given(path + "." + key) {
			k.add(path+"."+key, "required, unless the gate runs a command")
		}
	}
	k.pattern(path+".apiVersion", g.APIVersion, `([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?v[0-9]+((alpha|beta)[0-9]+)?`,
		"group and version of the Kubernetes API: write it like ceph.rook.io/v1")
	k.pattern(path+".kind", g.Kind, `[A-Z][A-Za-z0-9]{0,62}`, "kind of Kubernetes object: write it like CephCluster")
	k.pattern(path+".namespace", g.Namespace, `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`, "name of a namespace")
	k.pattern(path+".name", g.Name, dnsName, "name of a Kubernetes object")
	if g.Kind == "Secret" && g.APIVersion == "v1" {
		k.add(path+".kind", "Secrets are not allowed: the values that an expression reads are shown")
	}
	if k.given(path + ".env") {
		k.add(path+".env", "is for gates that run a command")
	}
	k.labels(path+".labelSelector", g)
	switch {
	case strings.TrimSpace(g.Expr) == "":
		k.add(path+".expr", "required, unless the gate runs a command")
	case k.expr != nil:
		if err := k.expr(g.Expr); err != nil {
			k.add(path+".expr", "%v", err)
		}
	}
}

func (r *report) labels(path string, g Gate) {
	if !r.given(path) {
		return
	}
	if r.given(strings.TrimSuffix(path, "labelSelector") + "name") {
		r.add(path, "name is given too (line %d): keep one of them", r.line(strings.TrimSuffix(path, "labelSelector")+"name"))
	}
	if len(g.LabelSelector.MatchLabels)+len(g.LabelSelector.MatchExpressions) == 0 {
		r.add(path, "selects every object: give it matchLabels or matchExpressions, or remove it")
	}
	for _, key := range slices.Sorted(maps.Keys(g.LabelSelector.MatchLabels)) {
		at := spot{path: path + ".matchLabels"}.entry(key).path
		r.labelKey(at, key)
		r.labelValue(at, g.LabelSelector.MatchLabels[key])
	}
	for i, e := range g.LabelSelector.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		r.labelKey(at+".key", e.Key)
		for j, v := range e.Values {
			r.labelValue(fmt.Sprintf("%s.values[%d]", at, j), v)
		}
		switch wants := e.Operator == "In" || e.Operator == "NotIn"; {
		case wants && len(e.Values) == 0:
			r.add(at+".values", "required by %s", e.Operator)
		case !wants && len(e.Values) > 0:
			r.add(at+".values", "%s takes none: remove them", e.Operator)
		}
	}
}

func (r *report) labelKey(path, key string) {
	if r.given(path) && !matches(key, labelKey) {
		r.add(path, "%s is not the key of a label", quote(key))
	}
}

func (r *report) labelValue(path, value string) {
	if r.given(path) && !matches(value, labelValue) {
		r.add(path, "%s is not the value of a label", quote(value))
	}
}
