# Says what is wanted, decides what is escalated, and tries the result itself.
. /workspace/lib.sh
tell pm task_assignment '{"goal":"a shell filter that turns titles into file names"}' --priority high
say "assigned the work to pm"
while take; do
  case $from/$type in
    engineering/escalation)
      say "engineering escalates: $(text question)"
      done_with
      announce all-agents policy_decision '{"decision":"a title without any letter or digit is refused with exit code 2"}'
      say "decided, for all agents"
      ;;
    pm/result)
      unpack program /tmp/slug.sh
      done_with
      [ "$(echo 'Hello,  World: part 2' | sh /tmp/slug.sh)" = hello-world-part-2 ]
      if echo '?!' | sh /tmp/slug.sh > /dev/null 2>&1; then say "the decision was not kept"; exit 1; fi
      say "tried it: 'Hello,  World: part 2' becomes $(echo 'Hello,  World: part 2' | sh /tmp/slug.sh)"
      announce all-agents goodbye '{"thanks":"the work is done"}'
      exit 0
      ;;
    *) done_with ;;
  esac
done
