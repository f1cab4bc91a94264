package command_test

import (
	"os"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/command"
)

// A program's output is shown without escape sequences, line by line.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	const evil = `printf 'bad\033[31m\033]0;title\007\rfake line: \342\200\256\342\200\250\177\n'; exit 3`
	programs := command.Gates{Env: []string{"PATH=" + os.Getenv("PATH")}}
	_, said, err := programs.RunGate(t.Context(), shell(evil), nil)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	end, err := programs.RunHook(t.Context(), shell(evil), nil, func(line string) { told = append(told, line) })
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{said, end.Said, strings.Join(told, "\n")} {
		if !strings.HasPrefix(text, "bad fake line: ") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") || strings.Contains(text, "title") {
			t.Errorf("%q", text)
		}
	}
}
