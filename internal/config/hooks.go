package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
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

// String returns the selector in the syntax of the Kubernetes API; "" selects everything.
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
		k.described(path, g.Description, g.Timeout)
		if k.given(path + ".command") {
			k.commandGate(path, g)
			continue
		}
		k.objectGate(path, g)
	}
}

// described checks what gates and hooks have in common.
func (r *report) described(path, description string, timeout Duration) {
	if r.given(path+".timeout") && timeout <= 0 {
		r.add(path+".timeout", "must be longer than 0")
	}
	r.notEmpty(path+".description", description)
	if strings.ContainsAny(description, "\r\n") {
		r.add(path+".description", "has more than one line")
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
		at := spot{path: path + ".matchLabels"}.key(key).path
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

// Hooks is the section "roll.hooks": programs that run at points of a run, each list from first to last.
type Hooks struct {
	// BeforeRun runs after a plan is confirmed, before any node is touched.
	BeforeRun []Hook `yaml:"beforeRun,omitempty"`
	// AfterRun runs at the end of every run for which beforeRun was started, even if that has failed or was interrupted; RECAST_OUTCOME says which.
	AfterRun []Hook `yaml:"afterRun,omitempty"`
	// BeforeBatch runs before the first node of each part of the plan: unfinished, reset, canary, control-planes, workers.
	BeforeBatch []Hook `yaml:"beforeBatch,omitempty"`
	// AfterBatch runs when all nodes of such a part are finished.
	AfterBatch []Hook `yaml:"afterBatch,omitempty"`
	// BeforeNode runs before a node is taken down, after the gates.
	BeforeNode []Hook `yaml:"beforeNode,omitempty"`
	// AfterNode runs when a node is back, healthy and schedulable, before the gates are checked again.
	AfterNode []Hook `yaml:"afterNode,omitempty"`
}

// Hook is one program of "roll.hooks". If it does not exit 0, the roll stops.
type Hook struct {
	// Description is the name of the hook in plans and reports. Default: its command.
	Description string `yaml:"description,omitempty"`
	// Command is a program and its arguments. It runs in the directory of this file, with RECAST_HOOK, RECAST_NODE and more in its environment (docs/notes/hooks.md lists them). Of recast's own environment it gets only PATH, HOME, other variables without secrets, and what env names.
	Command []string `yaml:"command" jsonschema:"required"`
	// Env names variables of recast's environment to pass to the command, such as SLACK_TOKEN; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
	// Timeout is how long it may run; then it is killed with all processes that it started. Default: 1m.
	Timeout Duration `yaml:"timeout"`
}

// hookList is one list of hooks and its path in the file.
type hookList struct {
	path  string
	hooks []Hook
}

func (h *Hooks) lists() []hookList {
	return []hookList{
		{"roll.hooks.beforeRun", h.BeforeRun},
		{"roll.hooks.afterRun", h.AfterRun},
		{"roll.hooks.beforeBatch", h.BeforeBatch},
		{"roll.hooks.afterBatch", h.AfterBatch},
		{"roll.hooks.beforeNode", h.BeforeNode},
		{"roll.hooks.afterNode", h.AfterNode},
	}
}

func (k checker) hooks() {
	for _, list := range k.c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			path := fmt.Sprintf("%s[%d]", list.path, i)
			k.described(path, h.Description, h.Timeout)
			if k.given(path+".command") && (len(h.Command) == 0 || strings.TrimSpace(h.Command[0]) == "") {
				k.add(path+".command", "names no program: write it like [./drain-lb.sh, argument]")
			}
			k.env(path, h.Env)
		}
	}
}

// env checks the names of the variables to pass to a program.
func (r *report) env(path string, names []string) {
	for i, name := range names {
		at := fmt.Sprintf("%s.env[%d]", path, i)
		switch {
		case name == "PROXMOX_VE_API_TOKEN":
			r.add(at, "recast passes its Proxmox token to no program: give this one its own token")
		case !matches(name, variable):
			r.add(at, "%s is not the name of an environment variable: list only names, not values", quote(name))
		}
	}
}

// Webhook is one entry of "notify": a URL that gets a POST when a run starts and ends.
type Webhook struct {
	// URL to call, such as https://ntfy.example/recast. If the URL itself is a secret, use urlEnv.
	URL string `yaml:"url,omitempty"`
	// URLEnv names the environment variable that holds the URL, instead of url.
	URLEnv string `yaml:"urlEnv,omitempty"`
	// On lists the events: start, when a confirmed plan starts; end, with any result; failure, if the run fails. Default: all of them; a run that ends sends only one event.
	On []string `yaml:"on" jsonschema:"enum=start,enum=failure,enum=end"`
	// Headers to send, by name; the values come from the environment.
	Headers map[string]Header `yaml:"headers,omitempty"`
	// ContentType of the request. Default: application/json.
	ContentType string `yaml:"contentType"`
	// Template of the request body, in the language of Go's text/template: docs/notes/notify.md lists its fields and has templates for chats. Default: all fields as JSON.
	Template string `yaml:"template,omitempty"`
	// CAFile is a PEM file with a CA of the server's certificate, in addition to the system's.
	CAFile string `yaml:"caFile,omitempty"`
}

// Header says where the value of a header comes from.
type Header struct {
	// Env names the environment variable that holds the value.
	Env string `yaml:"env" jsonschema:"required"`
}

const (
	variable   = `[A-Za-z_][A-Za-z0-9_]*`
	headerName = "[-A-Za-z0-9!#$%&'*+.^_`|~]+"
)

// noticeEvents are the values of "on".
var noticeEvents = []string{"start", "failure", "end"}

func (k checker) webhooks() {
	for i, w := range k.c.Notify {
		path := fmt.Sprintf("notify[%d]", i)
		k.webhookURL(path, w)
		k.webhookEvents(path+".on", w)
		k.webhookHeaders(path+".headers", w)
		k.pattern(path+".contentType", w.ContentType, `[a-z]+/[-a-z0-9.+]+(; ?[-a-z]+=[-A-Za-z0-9]+)*`, "media type: write it like application/json")
		k.notEmpty(path+".caFile", w.CAFile)
		k.notEmpty(path+".template", w.Template)
		if k.given(path+".template") && w.Template != "" && k.template != nil {
			if err := k.template(w.Template); err != nil {
				k.add(path+".template", "%v", err)
			}
		}
	}
}

// webhookURL checks the URL of a webhook. The message never shows the URL: its path may be the secret of a chat.
func (k checker) webhookURL(path string, w Webhook) {
	here, env := path+".url", path+".urlEnv"
	switch {
	case !k.given(here) && !k.given(env):
		k.add(path, "has neither url nor urlEnv: say where to send it")
	case k.given(here) && k.given(env):
		k.add(env, "url is given too (line %d): keep one of them", k.line(here))
	}
	k.pattern(env, w.URLEnv, variable, "name of an environment variable")
	if !k.given(here) {
		return
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		k.add(here, "is not a URL: write it like https://host/path")
	case u.User != nil:
		k.add(here, "holds a user or password: secrets never live in this file, urlEnv names a variable")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.add(here, "has a query or fragment, which often is a secret: urlEnv names an environment variable for the URL")
	case u.Scheme == "http" && len(w.Headers) > 0:
		k.add(here, "is not https, and what headers takes from the environment would go in the clear")
	}
}

func (k checker) webhookEvents(path string, w Webhook) {
	if k.given(path) && len(w.On) == 0 {
		k.add(path, "is empty: list some of %s", strings.Join(noticeEvents, ", "))
	}
	for i, event := range w.On {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !slices.Contains(noticeEvents, event):
			k.add(at, "%s is not one of %s%s", quote(event), strings.Join(noticeEvents, ", "), words.DidYouMean(event, noticeEvents))
		case slices.Index(w.On, event) < i:
			k.add(at, "is listed already")
		}
	}
}

func (k checker) webhookHeaders(path string, w Webhook) {
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		at := spot{path: path}.key(name)
		switch {
		case !matches(name, headerName):
			k.add(at.path, "%s is not the name of a header", quote(name))
		case strings.EqualFold(name, "Content-Type"):
			k.add(at.path, "is set by contentType")
		case slices.ContainsFunc([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection"}, func(s string) bool { return strings.EqualFold(s, name) }):
			k.add(at.path, "is set by the HTTP client: remove it")
		}
		k.pattern(at.key("env").path, w.Headers[name].Env, variable, "name of an environment variable")
	}
}
