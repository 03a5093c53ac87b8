# Finds the cases that the program must get right: a title, a tab, a file name.
. /workspace/lib.sh
while take; do
  case $from/$type in
    pm/task_assignment)
      printf '%s\t%s\n' 'Hello World' hello-world 'Tabs,  and  spaces' tabs-and-spaces ' -- Edges -- ' edges 'Part 2: more' part-2-more > /tmp/cases
      tell pm result "{\"cases\":\"$(pack /tmp/cases)\"}"
      say "named $(wc -l < /tmp/cases) cases"
      done_with
      ;;
    orchestrator/goodbye) done_with; exit 0 ;;
    *) done_with ;;
  esac
done
