package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

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

// webhookURL never shows the URL: its path may be the secret of a chat.
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
		at := spot{path: path}.entry(name)
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
