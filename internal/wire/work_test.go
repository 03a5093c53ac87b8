package wire

import (
	"os"
	"strings"
	"testing"
)

func TestTheContractListsEveryKindOfWhy(t *testing.T) {
	doc, err := os.ReadFile("../../docs/contracts/json.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "`kind` is `" + strings.Join(WhyKinds(), "`, `") + "` |"; !strings.Contains(string(doc), want) {
		t.Errorf("docs/contracts/json.md does not say: %s", want)
	}
}
