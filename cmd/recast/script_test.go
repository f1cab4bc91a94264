package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestMain(m *testing.M) {
	if os.Getenv("RECAST_TEST_MAIN") != "" {
		main()
	}
	if os.Getenv("RECAST_TEST_HOLDER") != "" {
		tellHolder()
	}
	syscall.Umask(0o022) // some stories bring a .recast, which others must not be able to write to
	// Most of a story is waiting for the lab, so that more of them fit than there
	// are processors. A flag on the command line still wins.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"recast": main})
}

// noNap is for GORACE: with the race detector every process waits a second before it
// ends (atexit_sleep_ms), and the scripts start hundreds of them.
const noNap = "atexit_sleep_ms=0"

// TestScript runs every script of testdata/script, with the commands of a user.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("NO_COLOR", "1")
			env.Setenv("GORACE", noNap)
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "long": // testscript's own, [short], does not tell make stories that something is left out here
				return !testing.Short(), nil
			case "mounts": // whether this user may mount in a namespace of their own
				return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "awaits": awaits, "sources": sources, "replaces": replaces, "hears": hears, "conforms": conforms, "visits": visits, "presses": presses,
		},
	})
}

// exits CODE PROGRAM ARG… runs a program and requires that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [arg…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// awaits FILE TEXT waits until the output file of a background command contains a text.
func awaits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: awaits file text")
	}
	deadline := time.Now().Add(3 * time.Minute)
	for time.Now().Before(deadline) {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && strings.Contains(string(b), args[1]) {
			return
		}
		<-time.After(50 * time.Millisecond) // another process is waited for
	}
	ts.Fatalf("%s never held %q", args[0], args[1])
}

// sources FILE sets the variables of an env file, as the shell's dot does.
func sources(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sources file")
	}
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		setting, exported := strings.CutPrefix(strings.TrimSpace(line), "export ")
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			ts.Fatalf("%s: %q sets nothing", args[0], line)
		}
		if !exported {
			continue // PATH: the stories have it
		}
		ts.Setenv(name, strings.Trim(value, "'"))
	}
}

// replaces FILE OLD NEW edits a file; OLD must be in it.
func replaces(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replaces file old new")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o600))
}

// hears FILE runs a web server that appends each request to a file, one per line, and
// sets HEARD_URL.
func hears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hears file")
	}
	path := ts.MkAbs(args[0])
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = appendLine(path, body)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	ts.Defer(s.Close)
	ts.Setenv("HEARD_URL", s.URL)
}

func appendLine(path string, line []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// conforms SCHEMA checks the output of the last command against a schema of
// docs/schemas.
func conforms(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: conforms schema")
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "docs", "schemas", args[0]+".schema.json"))
	ts.Check(err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(ts.ReadFile("stdout")))
	ts.Check(err)
	ts.Check(schema.Validate(doc))
}
