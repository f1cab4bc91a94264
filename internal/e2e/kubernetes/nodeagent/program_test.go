package nodeagent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
)

// programPath is where this test's binary is in its image. By that name it is the
// containers' program.
const programPath = "/usr/bin/program"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == filepath.Base(programPath) {
		os.Exit(program(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// programImage has only the program.
func programImage(t *testing.T) nodeagent.Image {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return nodeagent.Image{Files: map[string]string{programPath: self}, Entrypoint: []string{"program"}}
}

// program runs in containers.
func program(args []string) int {
	switch args[0] {
	case "exit": // code, termination message
		fmt.Println("exits with", args[1])
		code, err := strconv.Atoi(args[1])
		if err == nil {
			err = os.WriteFile("/dev/termination-log", []byte(strings.Join(args[2:], " ")), 0o600)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
		return code
	case "run": // exit code after SIGTERM, or "never"
		return run(args[1])
	case "look": // paths to read and, with a >, to write
		return look(args[1:])
	case "find": // a file
		if _, err := os.Stat(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case "api":
		return api()
	}
	fmt.Fprintf(os.Stderr, "what is %q?\n", args)
	return 99
}

// run runs until it is told to end.
func run(code string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	fmt.Println("runs")
	for range told {
		fmt.Println("told to end")
		if n, err := strconv.Atoi(code); err == nil {
			return n
		}
	}
	return 99
}

// seen is what a container looks like from the inside.
type seen struct {
	UID, GID, PID int
	Groups        []int
	Hostname, Dir string
	Args          []string
	Env           map[string]string
	// Files are the contents of files, the errors of those that could not be read or
	// written, and "written".
	Files map[string]string
}

func look(paths []string) int {
	s := seen{UID: os.Getuid(), GID: os.Getgid(), PID: os.Getpid(), Args: os.Args, Env: map[string]string{}, Files: map[string]string{}}
	s.Groups, _ = os.Getgroups() // an error is an empty list in the test
	s.Hostname, _ = os.Hostname()
	s.Dir, _ = os.Getwd()
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		s.Env[name] = value
	}
	for _, path := range paths {
		if file, write := strings.CutPrefix(path, ">"); write {
			s.Files[path] = "written"
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				s.Files[path] = err.Error()
			}
			continue
		}
		b, err := os.ReadFile(path)
		s.Files[path] = string(b)
		if err != nil {
			s.Files[path] = err.Error()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		return 99
	}
	return 0
}

// api asks the API server who the container is.
func api() int {
	review, err := whoAmI()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(review.Status.UserInfo.Username, review.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"])
	return 0
}

func whoAmI() (review authenticationv1.SelfSubjectReview, err error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return review, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return review, err
	}
	client.Timeout = time.Minute
	answer, err := client.Post(config.Host+"/apis/authentication.k8s.io/v1/selfsubjectreviews", "application/json",
		strings.NewReader(`{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`))
	if err != nil {
		return review, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return review, errors.New(answer.Status)
	}
	return review, json.NewDecoder(answer.Body).Decode(&review)
}
