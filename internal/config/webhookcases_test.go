package config_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// withWebhook is small with one webhook of those keys, written in braces.
func withWebhook(keys string) string { return small + "notify:\n  - {" + keys + "}\n" }

const aURL = "url: https://h/p"

func webhookCases() map[string]problemCase {
	return map[string]problemCase{
		"no list":         {small + "notify: {}\n", "16:1: notify: must be a list, not a section"},
		"nowhere":         {withWebhook("on: [end]"), "17:5: notify[0]: has neither url nor urlEnv: say where to send it"},
		"two places":      {withWebhook(aURL + ", urlEnv: A"), "17:24: notify[0].urlEnv: url is given too (line 17): keep one of them"},
		"no URL":          {withWebhook("url: h/p"), "17:6: notify[0].url: is not a URL: write it like https://host/path"},
		"another scheme":  {withWebhook("url: ftp://h/p"), "17:6: notify[0].url: is not a URL: write it like https://host/path"},
		"a password":      {withWebhook("url: https://u:p@h/"), "17:6: notify[0].url: holds a user or password: secrets never live in this file, urlEnv names a variable"},
		"a query":         {withWebhook("url: https://h/?sig=1"), "17:6: notify[0].url: has a query or fragment, which often is a secret: urlEnv names an environment variable for the URL"},
		"in the clear":    {withWebhook("url: http://h/, headers: {A: {env: B}}"), "17:6: notify[0].url: is not https, and what headers takes from the environment would go in the clear"},
		"no variable":     {withWebhook("urlEnv: $A"), `17:6: notify[0].urlEnv: "$A" is not a name of an environment variable`},
		"no event":        {withWebhook(aURL + ", on: []"), "17:24: notify[0].on: is empty: list some of start, failure, end"},
		"unknown event":   {withWebhook(aURL + ", on: [end, fail]"), `17:34: notify[0].on[1]: "fail" is not one of start, failure, end`},
		"twice":           {withWebhook(aURL + ", on: [end, end]"), "17:34: notify[0].on[1]: is listed already"},
		"value in file":   {withWebhook(aURL + ", headers: {Authorization: Bearer x}"), "17:34: notify[0].headers.Authorization: must be a section with keys, not text"},
		"no value":        {withWebhook(aURL + ", headers: {Authorization: {}}"), "17:34: notify[0].headers.Authorization.env: required"},
		"no header":       {withWebhook(aURL + ", headers: {'A b': {env: B}}"), `17:34: notify[0].headers."A b": "A b" is not the name of a header`},
		"type as header":  {withWebhook(aURL + ", headers: {content-type: {env: B}}"), "17:34: notify[0].headers.content-type: is set by contentType"},
		"another host":    {withWebhook(aURL + ", headers: {Host: {env: B}}"), "17:34: notify[0].headers.Host: is set by the HTTP client: remove it"},
		"no media type":   {withWebhook(aURL + ", contentType: json"), `17:24: notify[0].contentType: "json" is not a media type: write it like application/json`},
		"no template":     {withWebhook(aURL + ", template: ''"), "17:24: notify[0].template: is empty: give it a value or remove it"},
		"secret as a key": {withWebhook(aURL + ", token: x"), "17:24: notify[0].token: secrets never live in this file: export PROXMOX_VE_API_TOKEN"},
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	got, err := config.Parse("dir/recast.yaml", []byte(small+`notify:
  - {url: "http://127.0.0.1:8080/hook"}
  - urlEnv: SLACK_URL
    on: [failure]
    headers: {Authorization: {env: WEBHOOK_AUTH}}
    contentType: text/plain; charset=utf-8
    template: "{{.Text}}"
    caFile: ca.pem
`), config.Options{Dir: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Webhook{
		{URL: "http://127.0.0.1:8080/hook", On: []string{"start", "failure", "end"}, ContentType: "application/json"},
		{
			URLEnv: "SLACK_URL", On: []string{"failure"}, Headers: map[string]config.Header{"Authorization": {Env: "WEBHOOK_AUTH"}},
			ContentType: "text/plain; charset=utf-8", Template: "{{.Text}}", CAFile: "dir/ca.pem",
		},
	}
	if diff := cmp.Diff(want, got.Notify); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	out, err := got.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := config.Parse("again.yaml", out, config.Options{}); err != nil || !cmp.Equal(want, again.Notify) {
		t.Errorf("%v, from\n%s", err, out)
	}
}

// A bad template is reported with all other problems.
func TestWebhookTemplate(t *testing.T) {
	t.Parallel()
	o := config.Options{Template: func(string) error { return errors.New("unclosed action") }}
	_, err := config.Parse("recast.yaml", []byte(withWebhook(aURL+", template: '{{.Text'")), o)
	check(t, err, "recast.yaml:17:24: notify[0].template: unclosed action\n1 problem")
}
